//! Requests to stop: TERM, INT and USR1 set a flag, which the ranks exchange in every step.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// TERM or INT within this time are one request: a batch system signals every process of a job, and the
/// launcher forwards its signal too.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// Whether this process was asked to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag {
    requested: Arc<AtomicBool>,
}

impl StopFlag {
    /// Starts listening for USR1. Call it first: without it the signal kills the process.
    pub(crate) fn listen() -> io::Result<Self> {
        let flag = Self::default();
        signal_hook::flag::register(SIGUSR1, Arc::clone(&flag.requested))?;
        Ok(flag)
    }

    /// Makes TERM and INT request a stop after the current step. A second signal then ends the process
    /// immediately, as by default. Call it when there is state to lose.
    pub(crate) fn handle_signals(&self) -> io::Result<()> {
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let flag = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let mut first = None;
            for signal in signals.forever() {
                if is_second(&mut first, Instant::now()) {
                    // Ends the process; if that fails, the launcher kills it later.
                    let _ = emulate_default_handler(signal);
                }
                flag.requested.store(true, Ordering::Relaxed);
            }
        })?;
        Ok(())
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }
}

/// Returns whether a signal at `now` is a second request; `first` is the time of the first.
fn is_second(first: &mut Option<Instant>, now: Instant) -> bool {
    let earlier = *first.get_or_insert(now);
    now.saturating_duration_since(earlier) >= SAME_REQUEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_signals_within_the_limit_are_one_request() {
        let begun = Instant::now();
        let mut first = None;
        assert!(!is_second(&mut first, begun));
        assert!(!is_second(&mut first, begun + SAME_REQUEST / 2));
        assert!(is_second(&mut first, begun + SAME_REQUEST));
    }
}
