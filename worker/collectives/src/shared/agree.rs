//! Shared objects whose creation may fail on any rank: all ranks learn the outcome.

use dtrain_shared_memory::Ticket;
use tch::kind::Element;
use tch::{TchError, Tensor};

use crate::{CollectiveError, GlooGroup, Operation, ProcessGroup};

/// Why this rank failed.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Room for one sentence.
const REASON_BYTES: usize = 400;

/// Creates an object on rank 0 of `node` and sends its ticket; the other ranks of the node open it. Either
/// every rank of `all` gets its node's object, or all get the reason of the first rank that failed. When the
/// first rank returns, all ranks still hold the objects. On one node, both groups are the same. The outer
/// error is Gloo's.
pub(crate) fn create_jointly<T>(
    node: &GlooGroup,
    all: &GlooGroup,
    create: impl FnOnce() -> Result<(T, Ticket), Failure>,
    open: impl FnOnce(&Ticket) -> Result<T, Failure>,
) -> Result<Result<T, String>, CollectiveError> {
    let mut words = [0; Ticket::WORDS];
    let created = (node.rank() == 0).then(create);
    if let Some(Ok((_, ticket))) = &created {
        words = ticket.to_words();
    }
    broadcast(node, &mut words)?;
    let own = match created {
        Some(created) => created.map(|(object, _)| object),
        // A ticket is never all zeros: rank 0 has failed and reports why.
        None if words == [0; Ticket::WORDS] => Err("".into()),
        None => open(&Ticket::from_words(words)),
    };
    let own = own.map_err(|failure| failure.to_string());
    let reason = first_reason(all, own.as_ref().err().map(String::as_str))?;
    Ok(reason.map_or(own, Err))
}

/// Copies rank 0's values to every rank.
pub(crate) fn broadcast<T: Element>(
    group: &dyn ProcessGroup,
    values: &mut [T],
) -> Result<(), CollectiveError> {
    let tensor = Tensor::from_slice(values);
    group.broadcast(&tensor, 0)?.wait()?;
    let length = values.len();
    tensor.f_copy_data(values, length).map_err(local_error(group))
}

/// Returns the values of all ranks in rank order. Every rank passes the same number of values.
pub(super) fn gather<T: Element + Default + Clone>(
    gloo: &GlooGroup,
    own: &[T],
) -> Result<Vec<T>, CollectiveError> {
    let mut flat = vec![T::default(); own.len() * gloo.size()];
    let all = Tensor::f_from_slice(&flat).map_err(local_error(gloo))?;
    gloo.all_gather(&all, &Tensor::from_slice(own))?.wait()?;
    let length = flat.len();
    all.f_copy_data(&mut flat, length).map_err(local_error(gloo))?;
    Ok(flat)
}

/// Returns the reason of the first rank that failed, or `None`. `own` is this rank's reason. Every rank calls it.
pub fn first_reason(gloo: &GlooGroup, own: Option<&str>) -> Result<Option<String>, CollectiveError> {
    let mut bytes = [0u8; REASON_BYTES];
    if let Some(own) = own {
        // The first byte marks a failure, even one without text.
        bytes[0] = 1;
        for (to, byte) in bytes[1..].iter_mut().zip(own.bytes()) {
            *to = byte;
        }
    }
    let all = gather(gloo, &bytes)?;
    let ranks = all.chunks_exact(REASON_BYTES).enumerate();
    let failed: Vec<_> = ranks.filter(|(_, reason)| reason[0] != 0).collect();
    // A failure without text only follows from that of another rank.
    let first = failed.iter().find(|(_, reason)| reason[1] != 0).or(failed.first());
    Ok(first.map(|(rank, reason)| {
        let text = String::from_utf8_lossy(&reason[1..]);
        format!("rank {rank}: {}", text.trim_end_matches('\0'))
    }))
}

/// Returns the error of a local failure, which can only be a lack of memory.
fn local_error(group: &dyn ProcessGroup) -> impl Fn(TchError) -> CollectiveError {
    let operation = Operation::new("share memory", group.rank());
    move |error| CollectiveError::OutOfMemory(operation, error.to_string())
}
