//! How to wait for another thread that is about to be ready.

use std::time::Duration;

const SPIN: Duration = Duration::from_micros(20);
const YIELD: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(5);

/// What a thread that has `waited` for so long does before it looks again, with `sleep` to sleep.
///
/// NCCL's threads need tens of microseconds for what they are given, less than the shortest sleep: the wait begins without one.
/// Where it lasts, it is for a peer, and costs no processor.
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
    fn a_short_wait_sleeps_never_and_a_long_one_ever_longer() {
        let after = |micros| {
            let mut slept = None;
            pause(Duration::from_micros(micros), |time| slept = Some(time.as_micros()));
            slept
        };
        assert_eq!([0, 19, 20, 1_999].map(after), [None; 4]);
        assert_eq!([2_000, 16_000, 60_000_000].map(after), [Some(250), Some(2_000), Some(5_000)]);
    }
}
