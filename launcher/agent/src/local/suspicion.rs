//! Workers that seem to hang: found, inspected, and stopped only if nothing was heard of them meanwhile.

use super::event::{Action, Notice};
use super::phase::Why;
use super::state::{Agent, Suspicion};
use super::times::{INSPECTION, LAST_WORDS};
use crate::signals;
use std::time::Duration;

impl Agent {
    pub(super) fn look_for_a_hang(&mut self, now: Duration) {
        if let Some(suspicion) = self.suspicion {
            if suspicion.until <= now {
                self.stop_hanging(suspicion.rank, now);
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
        self.say(Notice::Hanging { silent });
        self.actions.push(Action::Inspect {
            ranks: self.running(),
            number: self.inspections,
        });
    }

    /// A debugger stops what it looks at: the workers get as long as that took to show that they were only slow.
    pub(super) fn inspected(&mut self, number: u32, now: Duration) {
        if let Some(suspicion) = &mut self.suspicion
            && suspicion.number == number
        {
            let took = now.saturating_sub(suspicion.since).min(LAST_WORDS);
            suspicion.until = suspicion.until.min(now.saturating_add(took));
            self.look_for_a_hang(now);
        }
    }

    /// Lets go of the suspicion if nobody is silent for too long any more.
    pub(super) fn recover(&mut self, now: Duration) {
        let hangs = self
            .progress
            .as_ref()
            .is_some_and(|progress| !progress.silent(now).is_empty());
        if self.suspicion.is_some() && !hangs {
            self.suspicion = None;
            self.say(Notice::Recovered);
        }
    }

    /// Programs that can say where they are do it on SIGABRT: Python's faulthandler prints every thread's stack, our trainer
    /// that of its main thread.
    fn stop_hanging(&mut self, rank: usize, now: Duration) {
        self.stop(Why::Hang { rank }, Some(now.saturating_add(self.last_words())));
        for rank in self.running() {
            self.send(rank, signals::ABRT, now);
        }
    }
}
