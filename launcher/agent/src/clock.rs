//! The clock of a run.

use std::time::{Duration, Instant, SystemTime};

/// When the command began, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Origin of the agent's times.
    pub at: Instant,
    /// The same moment by the calendar, for files and for the workers.
    pub wall: SystemTime,
}

impl Begun {
    /// This moment.
    pub fn now() -> Self {
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// Time on the agent's clock.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}
