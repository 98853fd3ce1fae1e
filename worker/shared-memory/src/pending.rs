//! An operation under way, and its end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Fault;

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    ended: Mutex<Option<Result<(), Fault>>>,
    told: Condvar,
}

impl Outcome {
    fn lock(&self) -> MutexGuard<'_, Option<Result<(), Fault>>> {
        // The lock guards one assignment: there is no half-done state to fear.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, result: Result<(), Fault>) {
        self.lock().get_or_insert(result);
        self.told.notify_all();
    }
}

/// An operation under way; see [`crate::Member::start`]. Dropping it does not end the operation.
#[derive(Debug)]
pub struct Pending {
    pub(crate) outcome: Arc<Outcome>,
}

impl Pending {
    /// Whether the operation has ended, well or badly; never blocks longer than an assignment takes.
    pub fn is_finished(&self) -> bool {
        self.outcome.lock().is_some()
    }

    /// Sleeps until the operation has ended. It always does: a rank that dies or is late ends it with a fault.
    ///
    /// # Errors
    /// Why it failed; the memory is undefined then.
    pub fn wait(&self) -> Result<(), Fault> {
        let mut ended = self.outcome.lock();
        loop {
            if let Some(result) = ended.as_ref() {
                return result.clone();
            }
            ended = self
                .outcome
                .told
                .wait(ended)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
