//! Processor time, for measurements.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of all threads of this process so far.
pub fn time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
