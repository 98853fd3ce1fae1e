//! The thread that executes operations.
//!
//! An operation has two stages. When all ranks are ready, this rank computes its part; when all ranks have
//! done their parts, the operation ends. The next operation's part may begin before the previous one ends, so
//! a slow rank delays the others as little as possible.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dtrain_common::trace::{self, Kind};

use crate::control::Stage;
use crate::error::Fault;
use crate::kernel;
use crate::parts;
use crate::queue::{Collective, Operation, Shared, StartedOperation, Stop};

/// The interval at which a waiting rank checks whether the other ranks live, and the deadlines.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Engine {
    shared: Arc<Shared>,
    /// Operations whose part this rank has done, in order. They end when all ranks have done theirs.
    own_part_done: VecDeque<StartedOperation>,
    /// The reason why every later operation fails.
    fault: Option<Fault>,
}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, own_part_done: VecDeque::new(), fault: None }
    }

    pub(crate) fn run(mut self) {
        let mut last_check = Instant::now();
        loop {
            // Read the bell before any check: a later change rings it, and then sleep returns immediately.
            let heard = self.shared.control.bell();
            if let Some(fault) = self.fault.clone() {
                self.fail(&fault);
            } else if self.step() {
                continue;
            }
            if self.is_over() {
                return;
            }
            let now = Instant::now();
            let checks_processes = now.duration_since(last_check) >= CHECK_INTERVAL;
            if checks_processes {
                last_check = now;
            }
            self.fault = self.fault.take().or_else(|| self.find_fault(now, checks_processes));
            if self.fault.is_none() || self.shared.queue().waiting.is_empty() && self.own_part_done.is_empty()
            {
                self.shared.control.sleep(heard, self.sleep_limit(now));
            }
        }
    }

    /// Ends operations that all ranks have done, and computes this rank's part of one for which all are
    /// ready. Returns whether it did either.
    fn step(&mut self) -> bool {
        let control = &self.shared.control;
        let mut progress = false;
        while let Some(started) = self.own_part_done.front() {
            if control.missing_ranks(Stage::Done, started.sequence).next().is_some() {
                break;
            }
            started.end(Ok(()));
            self.own_part_done.pop_front();
            progress = true;
        }
        let mut queue = self.shared.queue();
        if queue.stop == Some(Stop::Abandon) {
            return false;
        }
        let ready = |started: &StartedOperation| {
            control.missing_ranks(Stage::Ready, started.sequence).next().is_none()
        };
        let is_ready = queue.waiting.front().is_some_and(ready);
        let Some(started) = is_ready.then(|| queue.waiting.pop_front()).flatten() else {
            return progress;
        };
        drop(queue);
        if let Some(rank) = control.find_mismatch(started.sequence, started.tag) {
            self.fault = Some(Fault::Mismatch(rank));
            started.end(Err(Fault::Mismatch(rank)));
            return true;
        }
        self.compute_part(&started);
        control.publish(Stage::Done, started.sequence);
        self.own_part_done.push_back(started);
        true
    }

    /// Computes this rank's part of an operation for which all ranks are ready.
    fn compute_part(&self, started: &StartedOperation) {
        let (rank, size) = (self.shared.control.rank(), self.shared.control.size());
        let Operation { collective, element, offset, count } = started.operation;
        let range = offset..offset + count * element.bytes();
        let _part = trace::bytes_span(Kind::Reduction, || "reduce".to_owned(), || range.len() as u64);
        let regions: Vec<_> = (0..size).map(|rank| started.segment.region(rank)).collect();
        let own = regions[rank];
        match collective {
            Collective::AllReduce(reduction) => {
                let part = parts::part_by_lines(&range, rank, size);
                // SAFETY: Member::start has checked that the range is aligned and inside every region. All
                // ranks are ready, so their callers leave the range alone until all have done. By the
                // protocol only this rank touches this part of the range, in all regions.
                unsafe { kernel::reduce(&regions, &regions, part, element, reduction) }
            }
            Collective::Reduce(reduction) => {
                let part = parts::part_by_lines(&range, rank, size);
                // SAFETY: as above. Only this rank touches this part of rank 0's range.
                unsafe { kernel::reduce(&regions, &regions[..1], part, element, reduction) }
            }
            Collective::Broadcast if rank == 0 => {}
            // SAFETY: as above. Nobody writes to rank 0's range, and only this rank touches its own.
            Collective::Broadcast => unsafe { kernel::copy(regions[0], own, range) },
            Collective::ReduceScatter(reduction) => {
                let part = parts::equal_part(&range, rank, size);
                // SAFETY: as above. The other ranks read their parts of this region and write to their own
                // regions.
                unsafe { kernel::reduce(&regions, &[own], part, element, reduction) }
            }
            Collective::AllGather => {
                // Each rank begins with its neighbour, so that not all ranks read the same region at once.
                for from in (1..size).map(|step| (rank + step) % size) {
                    let part = parts::equal_part(&range, from, size);
                    // SAFETY: as above. Rank `from` does not write to its own part, and only this rank
                    // touches the other parts of this rank's region.
                    unsafe { kernel::copy(regions[from], own, part) }
                }
            }
        }
    }

    /// Returns whether the thread can end.
    fn is_over(&self) -> bool {
        let queue = self.shared.queue();
        match queue.stop {
            None => false,
            Some(Stop::Abandon) => true,
            Some(Stop::Finish) => queue.waiting.is_empty() && self.own_part_done.is_empty(),
        }
    }

    /// Returns a fault if a rank is gone or a deadline has passed. With `checks_processes`, asks the kernel
    /// which ranks live.
    fn find_fault(&self, now: Instant, checks_processes: bool) -> Option<Fault> {
        let control = &self.shared.control;
        let queue = self.shared.queue();
        let gone = |rank: &usize| control.has_left(*rank) || checks_processes && !control.is_alive(*rank);
        let stages = [(self.own_part_done.front(), Stage::Done), (queue.waiting.front(), Stage::Ready)];
        let fronts = || stages.into_iter().filter_map(|(started, stage)| Some((started?, stage)));
        // The rank may have announced this stage between our check and its end: check again.
        let lost = fronts().find_map(|(started, stage)| {
            let rank = control.missing_ranks(stage, started.sequence).find(gone)?;
            control.missing_ranks(stage, started.sequence).find(|still| *still == rank)
        });
        if let Some(rank) = lost {
            return Some(Fault::PeerLost(rank));
        }
        let is_late = |started: &StartedOperation| started.deadline.is_some_and(|deadline| deadline <= now);
        let (started, stage) = fronts().find(|(started, _)| is_late(started))?;
        let rank = control.missing_ranks(stage, started.sequence).next()?;
        Some(Fault::TimedOut(rank, started.timeout))
    }

    /// Returns the longest time to sleep.
    fn sleep_limit(&self, now: Instant) -> Duration {
        let queue = self.shared.queue();
        let deadlines = [self.own_part_done.front(), queue.waiting.front()]
            .into_iter()
            .filter_map(|started| started?.deadline);
        let next = deadlines.min().map(|deadline| deadline.saturating_duration_since(now));
        next.map_or(CHECK_INTERVAL, |next| next.min(CHECK_INTERVAL))
    }

    /// Ends all started operations with `fault`.
    fn fail(&mut self, fault: &Fault) {
        let waiting = std::mem::take(&mut self.shared.queue().waiting);
        for started in self.own_part_done.drain(..).chain(waiting) {
            started.end(Err(fault.clone()));
        }
    }
}

/// Also runs if the thread panics: operations in the queue, and later ones, would otherwise wait forever.
impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.queue().stop = Some(Stop::Abandon);
        self.fail(&Fault::Stopped);
    }
}
