//! The thread that carries operations out.
//!
//! An operation goes through two stages. When all ranks are ready for it, this rank does its part; when all have done
//! theirs, it has ended. The part of the next operation may begin before the end of the one before: a rank that is behind
//! holds the others up no longer than it must.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::control::Stage;
use crate::error::Fault;
use crate::kernel;
use crate::parts;
use crate::queue::{Collective, Job, Operation, Shared, Stop};

/// How often a rank that waits asks the kernel whether those it waits for still live, and looks at the clock.
const TICK: Duration = Duration::from_millis(100);

pub(crate) struct Engine {
    shared: Arc<Shared>,
    /// Own part done, in order; they end when the others have done theirs.
    ending: VecDeque<Job>,
    /// Why everything fails from now on.
    fault: Option<Fault>,
}

impl Engine {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, ending: VecDeque::new(), fault: None }
    }

    pub(crate) fn run(mut self) {
        let mut last_look = Instant::now();
        loop {
            // Before anything is looked at: what changes from here on rings the bell, and then sleep returns at once.
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
            let ask = now.duration_since(last_look) >= TICK;
            if ask {
                last_look = now;
            }
            self.fault = self.fault.take().or_else(|| self.look(now, ask));
            if self.fault.is_none() || self.shared.queue().waiting.is_empty() && self.ending.is_empty() {
                self.shared.control.sleep(heard, self.nap(now));
            }
        }
    }

    /// Ends what all have done and does the own part of what all are ready for. Says whether there was any of it.
    fn step(&mut self) -> bool {
        let control = &self.shared.control;
        let mut progress = false;
        while let Some(job) = self.ending.front() {
            if control.behind(Stage::Done, job.sequence).next().is_some() {
                break;
            }
            job.end(Ok(()));
            self.ending.pop_front();
            progress = true;
        }
        let mut queue = self.shared.queue();
        if queue.stop == Some(Stop::Abandon) {
            return false;
        }
        let ready = |job: &Job| control.behind(Stage::Ready, job.sequence).next().is_none();
        let is_ready = queue.waiting.front().is_some_and(ready);
        let Some(job) = is_ready.then(|| queue.waiting.pop_front()).flatten() else {
            return progress;
        };
        drop(queue);
        if let Some(rank) = control.mismatch(job.sequence, job.tag) {
            self.fault = Some(Fault::Mismatch(rank));
            job.end(Err(Fault::Mismatch(rank)));
            return true;
        }
        self.part(&job);
        control.publish(Stage::Done, job.sequence);
        self.ending.push_back(job);
        true
    }

    /// This rank's part of an operation that all are ready for.
    fn part(&self, job: &Job) {
        let (rank, size) = (self.shared.control.rank(), self.shared.control.size());
        let Operation { collective, element, offset, count } = job.operation;
        let range = offset..offset + count * element.bytes();
        let regions: Vec<_> = (0..size).map(|rank| job.segment.region(rank)).collect();
        let own = regions[rank];
        match collective {
            Collective::AllReduce(reduction) => {
                let part = parts::by_lines(&range, rank, size);
                // SAFETY: Member::start has checked that the range is aligned and inside every region. All ranks are ready,
                // so their callers keep away from the range until all have done; and by the protocol this part of it is
                // this rank's alone, in all regions.
                unsafe { kernel::reduce(&regions, &regions, part, element, reduction) }
            }
            Collective::ReduceScatter(reduction) => {
                let part = parts::equal(&range, rank, size);
                // SAFETY: as above. The others read their own parts of this rank's region and write to theirs.
                unsafe { kernel::reduce(&regions, &[own], part, element, reduction) }
            }
            Collective::AllGather => {
                // Each rank begins with its neighbour, so that they do not all read from one region.
                for from in (1..size).map(|step| (rank + step) % size) {
                    let part = parts::equal(&range, from, size);
                    // SAFETY: as above. Rank `from` does not write to its own part, and nobody but this rank touches the
                    // other parts of this rank's region.
                    unsafe { kernel::copy(regions[from], own, part) }
                }
            }
        }
    }

    /// Whether the thread's work has come to its end.
    fn is_over(&self) -> bool {
        let queue = self.shared.queue();
        match queue.stop {
            None => false,
            Some(Stop::Abandon) => true,
            Some(Stop::Finish) => queue.waiting.is_empty() && self.ending.is_empty(),
        }
    }

    /// Looks for a reason to give up: a rank that is gone, or a time that has passed. `ask` asks the kernel who lives.
    fn look(&self, now: Instant, ask: bool) -> Option<Fault> {
        let control = &self.shared.control;
        let queue = self.shared.queue();
        let gone = |rank: &usize| control.has_left(*rank) || ask && !control.lives(*rank);
        let stages = [(self.ending.front(), Stage::Done), (queue.waiting.front(), Stage::Ready)];
        let fronts = || stages.into_iter().filter_map(|(job, stage)| Some((job?, stage)));
        // A rank that has gone may have announced this before it went, and after we looked for it: look once more.
        let lost = fronts().find_map(|(job, stage)| {
            let rank = control.behind(stage, job.sequence).find(gone)?;
            control.behind(stage, job.sequence).find(|still| *still == rank)
        });
        if let Some(rank) = lost {
            return Some(Fault::PeerLost(rank));
        }
        let late = |job: &Job| job.deadline.is_some_and(|deadline| deadline <= now);
        let mut late = fronts().filter(|(job, _)| late(job));
        late.next().and_then(|(job, stage)| {
            let rank = control.behind(stage, job.sequence).next()?;
            Some(Fault::TimedOut(rank, job.timeout))
        })
    }

    /// How long to sleep at most.
    fn nap(&self, now: Instant) -> Duration {
        let queue = self.shared.queue();
        let deadlines =
            [self.ending.front(), queue.waiting.front()].into_iter().filter_map(|job| job?.deadline);
        let next = deadlines.min().map(|deadline| deadline.saturating_duration_since(now));
        next.map_or(TICK, |next| next.min(TICK))
    }

    /// Ends everything that was started, badly.
    fn fail(&mut self, fault: &Fault) {
        let waiting = std::mem::take(&mut self.shared.queue().waiting);
        for job in self.ending.drain(..).chain(waiting) {
            job.end(Err(fault.clone()));
        }
    }
}

/// Also where the thread panics: what is still in the queue, or comes later, would wait for ever.
impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.queue().stop = Some(Stop::Abandon);
        self.fail(&Fault::Stopped);
    }
}
