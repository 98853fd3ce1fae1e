//! The clock of a run.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The start of the command, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct StartTime {
    /// Origin of the agent's times.
    pub at: Instant,
    /// The same moment as calendar time, for files and for the workers.
    pub wall: SystemTime,
}

impl StartTime {
    pub fn now() -> Self {
        Self { at: Instant::now(), wall: SystemTime::now() }
    }

    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Converts a time of the agent's clock to milliseconds since 1970.
    pub fn unix_ms(&self, at: Duration) -> u64 {
        let since_epoch = self.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.saturating_add(at).as_millis()).unwrap_or(u64::MAX)
    }
}
