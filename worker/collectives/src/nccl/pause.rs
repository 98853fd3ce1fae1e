//! The pauses of a thread that polls another thread.

use std::time::Duration;

const SPIN: Duration = Duration::from_micros(20);
const YIELD: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(5);

/// Pauses a thread that has already waited for `waited`, before it polls again. Calls `sleep` to sleep.
///
/// NCCL's threads need tens of microseconds for a call, less than the shortest sleep: a wait begins without
/// sleeping. A longer wait is for a peer, and should not use the processor.
pub(super) fn pause(waited: Duration, sleep: impl FnOnce(Duration)) {
    if waited < SPIN {
        std::hint::spin_loop();
    } else if waited < YIELD {
        std::thread::yield_now();
    } else {
        sleep((waited / 8).min(LONGEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_never_sleep_and_long_waits_sleep_longer() {
        let after = |micros| {
            let mut slept = None;
            pause(Duration::from_micros(micros), |time| slept = Some(time.as_micros()));
            slept
        };
        assert_eq!([0, 19, 20, 1_999].map(after), [None; 4]);
        assert_eq!([2_000, 16_000, 60_000_000].map(after), [Some(250), Some(2_000), Some(5_000)]);
    }
}
