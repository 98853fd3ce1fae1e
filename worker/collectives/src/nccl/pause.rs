//! How to wait for another thread that is about to be ready.

use std::time::Duration;

/// What a waiting thread does before it looks again.
///
/// NCCL's threads need tens of microseconds for what they are given, less than the shortest sleep: the wait begins without one.
/// Where it lasts, it is for a peer, and costs no processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pause {
    /// Nothing.
    Spin,
    /// It lets others run that wait for a processor.
    Yield,
    /// It sleeps.
    Sleep(Duration),
}

impl Pause {
    const SPIN: Duration = Duration::from_micros(20);
    const YIELD: Duration = Duration::from_millis(2);
    const LONGEST: Duration = Duration::from_millis(5);

    /// The next one of a thread that has waited for so long.
    pub(super) fn after(waited: Duration) -> Self {
        if waited < Self::SPIN {
            Self::Spin
        } else if waited < Self::YIELD {
            Self::Yield
        } else {
            Self::Sleep((waited / 8).min(Self::LONGEST))
        }
    }

    /// Takes it, with `sleep` to sleep.
    pub(super) fn take(self, sleep: fn(Duration)) {
        match self {
            Self::Spin => std::hint::spin_loop(),
            Self::Yield => std::thread::yield_now(),
            Self::Sleep(pause) => sleep(pause),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_wait_sleeps_never_and_a_long_one_ever_longer() {
        let after = |micros| Pause::after(Duration::from_micros(micros));
        assert_eq!((after(0), after(19)), (Pause::Spin, Pause::Spin));
        assert_eq!((after(20), after(1_999)), (Pause::Yield, Pause::Yield));
        assert_eq!(after(2_000), Pause::Sleep(Duration::from_micros(250)));
        assert_eq!(after(16_000), Pause::Sleep(Duration::from_millis(2)));
        assert_eq!(after(60_000_000), Pause::Sleep(Duration::from_millis(5)));
    }
}
