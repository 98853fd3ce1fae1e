//! How the ranks make something together that any of them may fail to make: all of them know in the end.

use dtrain_shared_memory::Ticket;
use tch::{Device, Kind, Tensor};

use crate::{CollectiveError, GlooGroup, ProcessGroup};

/// Enough for a sentence.
const REASON_BYTES: usize = 400;

/// Rank 0 makes a thing and sends its ticket; the others open it. Every rank gets its own, or all get the reason of the first
/// rank that has none. What was made is still held by all ranks when the first of them returns.
///
/// # Errors
/// Those of Gloo.
pub(super) fn make<T>(
    gloo: &GlooGroup,
    create: impl FnOnce() -> Result<(T, Ticket), String>,
    open: impl FnOnce(&Ticket) -> Result<T, String>,
) -> Result<Result<T, String>, CollectiveError> {
    let mut words = [0; Ticket::WORDS];
    let created = (gloo.rank() == 0).then(create);
    if let Some(Ok((_, ticket))) = &created {
        words = ticket.to_words();
    }
    let words = broadcast(gloo, words)?;
    let own = match created {
        Some(created) => created.map(|(thing, _)| thing),
        // No ticket is all zeros: rank 0 has failed, and says why itself.
        None if words == [0; Ticket::WORDS] => Err(String::new()),
        None => match Ticket::from_words(&words) {
            Some(ticket) => open(&ticket),
            None => Err("rank 0 sent a ticket that is none".into()),
        },
    };
    Ok(
        match first_reason(gloo, own.as_ref().err().map(String::as_str))? {
            Some(reason) => Err(reason),
            None => own,
        },
    )
}

fn broadcast(gloo: &GlooGroup, words: [i64; Ticket::WORDS]) -> Result<[i64; Ticket::WORDS], CollectiveError> {
    let mut words = words;
    let tensor = Tensor::from_slice(&words);
    gloo.broadcast(&tensor, 0)?.wait()?;
    let length = words.len();
    tensor.f_copy_data(&mut words, length).map_err(local(gloo))?;
    Ok(words)
}

/// Every rank's words, in the order of ranks.
///
/// # Errors
/// Those of Gloo.
pub(super) fn gather<const N: usize>(
    gloo: &GlooGroup,
    own: [i64; N],
) -> Result<Vec<[i64; N]>, CollectiveError> {
    let all = zeros(gloo, N, Kind::Int64)?;
    gloo.all_gather(&all, &Tensor::from_slice(&own))?.wait()?;
    let mut flat = vec![0; N * gloo.size()];
    let length = flat.len();
    all.f_copy_data(&mut flat, length).map_err(local(gloo))?;
    Ok(flat
        .chunks_exact(N)
        .filter_map(|words| words.try_into().ok())
        .collect())
}

/// The first rank's reason, or `None` where no rank has one.
fn first_reason(gloo: &GlooGroup, own: Option<&str>) -> Result<Option<String>, CollectiveError> {
    let mut bytes = [0u8; REASON_BYTES];
    if let Some(own) = own {
        // The first byte says that there is a reason, also where it has no words.
        bytes[0] = 1;
        for (place, byte) in bytes[1..].iter_mut().zip(own.bytes()) {
            *place = byte;
        }
    }
    let all = zeros(gloo, REASON_BYTES, Kind::Uint8)?;
    gloo.all_gather(&all, &Tensor::from_slice(&bytes))?.wait()?;
    let mut flat = vec![0u8; REASON_BYTES * gloo.size()];
    let length = flat.len();
    all.f_copy_data_u8(&mut flat, length).map_err(local(gloo))?;
    let ranks = flat.chunks_exact(REASON_BYTES).enumerate();
    let failed: Vec<_> = ranks.filter(|(_, said)| said[0] != 0).collect();
    // A rank without words only follows another.
    let told = failed.iter().find(|(_, said)| said[1] != 0).or(failed.first());
    Ok(told.map(|(rank, said)| {
        let end = said[1..]
            .iter()
            .position(|byte| *byte == 0)
            .map_or(said.len(), |end| end + 1);
        format!("rank {rank}: {}", String::from_utf8_lossy(&said[1..end]))
    }))
}

/// Room for `each` elements of every rank.
fn zeros(gloo: &GlooGroup, each: usize, kind: Kind) -> Result<Tensor, CollectiveError> {
    let count = (each * gloo.size()) as i64;
    Tensor::f_zeros([count], (kind, Device::Cpu)).map_err(local(gloo))
}

/// A failure on this rank, of what only needs a little memory.
fn local(gloo: &GlooGroup) -> impl Fn(tch::TchError) -> CollectiveError {
    let rank = gloo.rank();
    move |error| CollectiveError::OutOfMemory {
        op: "share memory",
        rank,
        message: error.to_string(),
    }
}
