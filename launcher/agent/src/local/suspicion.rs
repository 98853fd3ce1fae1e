//! Workers that seem to hang: found, inspected, and stopped only if nothing was heard of them meanwhile.

use super::stop::{LAST_WORDS, Why};
use super::{Action, Agent, Notice};
use crate::signals;
use std::time::Duration;

/// An inspection that takes longer is not waited for.
pub const INSPECTION: Duration = Duration::from_secs(30);

/// Workers that are taken for hanging and are being inspected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspicion {
    /// The one that was silent first.
    rank: usize,
    since: Duration,
    until: Duration,
    /// That of its inspection: an earlier one may be answered late.
    number: u32,
}

impl Suspicion {
    /// When the workers are stopped, unless something is heard of them before.
    pub(super) fn until(&self) -> Duration {
        self.until
    }

    /// The same after nothing ran for so long.
    pub(super) fn thaw(self, frozen: Duration) -> Self {
        Self {
            since: self.since + frozen,
            until: self.until + frozen,
            ..self
        }
    }
}

impl Agent {
    pub(super) fn look_for_a_hang(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if let Some(suspicion) = self.suspicion {
            if suspicion.until <= now {
                self.stop_hanging(suspicion.rank, now, actions);
            }
            return;
        }
        let silent = self
            .progress
            .as_ref()
            .map(|progress| progress.silent(now))
            .unwrap_or_default();
        let Some(&(rank, _)) = silent.first() else {
            return;
        };
        self.inspections += 1;
        self.suspicion = Some(Suspicion {
            rank,
            since: now,
            until: now.saturating_add(INSPECTION),
            number: self.inspections,
        });
        actions.push(Action::Tell(Notice::Hanging { silent }));
        actions.push(Action::Inspect {
            ranks: self.running(),
            number: self.inspections,
        });
    }

    /// A debugger stops what it looks at: the workers get as long as that took to show that they were only slow.
    pub(super) fn inspected(&mut self, number: u32, now: Duration, actions: &mut Vec<Action>) {
        if let Some(suspicion) = &mut self.suspicion
            && suspicion.number == number
        {
            let took = now.saturating_sub(suspicion.since).min(LAST_WORDS);
            suspicion.until = suspicion.until.min(now.saturating_add(took));
            self.look_for_a_hang(now, actions);
        }
    }

    /// Lets go of the suspicion if nobody is silent for too long any more.
    pub(super) fn recover(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let hangs = self
            .progress
            .as_ref()
            .is_some_and(|progress| !progress.silent(now).is_empty());
        if self.suspicion.is_some() && !hangs {
            self.suspicion = None;
            actions.push(Action::Tell(Notice::Recovered));
        }
    }

    /// Programs that can say where they are do it on SIGABRT: Python's faulthandler prints every thread's stack, our trainer
    /// that of its main thread.
    fn stop_hanging(&mut self, rank: usize, now: Duration, actions: &mut Vec<Action>) {
        self.stop(Why::Hang { rank }, Some(now.saturating_add(self.last_words())));
        for rank in self.running() {
            self.send(rank, signals::ABRT, now, actions);
        }
    }
}
