//! Sends and receives between two ranks, through a box for each pair.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::comm::{BOX, Comm, Place, Region};
use super::{INVALID_ARGUMENT, INVALID_USAGE, fail, put, reduce};
use crate::check::Use;
use crate::ffi::Outcome;
use crate::memory::View;

/// A send or a receive.
#[derive(Clone)]
pub(super) struct Transfer {
    comm: Arc<Comm>,
    sends: bool,
    memory: View,
    peer: usize,
}

impl Transfer {
    pub(super) fn new(
        sends: bool,
        at: usize,
        (count, element): (usize, c_int),
        peer: c_int,
        comm: Arc<Comm>,
    ) -> Outcome<Self> {
        let size = count * reduce::size_of(element);
        let outside = || fail("a buffer is not in device memory", INVALID_ARGUMENT);
        let memory = View::of_device(at, size).ok_or_else(outside)?;
        let ranks = comm.place().ok_or(INVALID_USAGE)?.size;
        let peer = usize::try_from(peer).ok().filter(|peer| *peer < ranks).ok_or(INVALID_ARGUMENT)?;
        Ok(Self { comm, sends, memory, peer })
    }

    /// Moves the part at `done` if the box is ready, and returns its bytes.
    fn step(&self, place: &Place, region: &Region, done: usize) -> usize {
        let (from, to) = if self.sends { (place.rank, self.peer) } else { (self.peer, place.rank) };
        let (exchange, left, taken) = region.pair(place.size, from, to);
        let is_full = left.load(Ordering::Acquire) > taken.load(Ordering::Acquire);
        if self.sends == is_full {
            return 0;
        }
        let size = BOX.min(self.memory.size - done);
        let part = View { at: self.memory.at + done, size };
        if self.sends {
            exchange.copy_from(part);
            left.fetch_add(1, Ordering::AcqRel);
        } else {
            part.copy_from(exchange);
            taken.fetch_add(1, Ordering::AcqRel);
        }
        size
    }
}

/// Puts the transfers of a group on their streams: those of one communicator and stream run together.
pub(super) fn start(mut transfers: Vec<(Transfer, usize)>) -> Outcome {
    while let Some((first, stream)) = transfers.first().cloned() {
        let is_same =
            |other: &mut (Transfer, usize)| Arc::ptr_eq(&other.0.comm, &first.comm) && other.1 == stream;
        let group: Vec<_> = transfers.extract_if(.., is_same).map(|(transfer, _)| transfer).collect();
        let uses = |transfer: &Transfer| Use {
            at: transfer.memory.at,
            size: transfer.memory.size,
            writes: !transfer.sends,
        };
        let uses = group.iter().map(uses).collect();
        put(&first.comm, stream, "ncclSendRecv".to_owned(), uses, move || run(&group))?;
    }
    Ok(())
}

/// Makes progress on all transfers until they are done.
fn run(group: &[Transfer]) {
    let Some(comm) = group.first().map(|transfer| &transfer.comm) else { return };
    let Some(place) = comm.place() else { return };
    let Some(region) = &place.region else {
        let of = |sends| group.iter().filter(move |transfer| transfer.sends == sends);
        of(true).zip(of(false)).for_each(|(from, to)| to.memory.copy_from(from.memory));
        return;
    };
    let mut open: Vec<(&Transfer, usize)> = group.iter().map(|transfer| (transfer, 0)).collect();
    open.retain(|(transfer, _)| transfer.memory.size > 0);
    let mut round = 0_u32;
    while let Some(peer) = open.first().map(|(transfer, _)| transfer.peer) {
        let mut moved = 0;
        for index in 0..open.len() {
            let (transfer, done) = open[index];
            // Transfers with the same peer are in their order.
            let is_same =
                |other: &(&Transfer, usize)| other.0.peer == transfer.peer && other.0.sends == transfer.sends;
            if !open[..index].iter().any(is_same) {
                let bytes = transfer.step(place, region, done);
                open[index].1 += bytes;
                moved += bytes;
            }
        }
        round = if moved > 0 { 0 } else { round.saturating_add(1) };
        if moved == 0 && !comm.pause(region, peer, round) {
            return;
        }
        open.retain(|(transfer, done)| *done < transfer.memory.size);
    }
}
