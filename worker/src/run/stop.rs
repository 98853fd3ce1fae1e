//! Requests to stop: TERM, INT and USR1 set a flag; the step loop reads it between steps, and the ranks agree on it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Two TERM or INT closer together than this are one request: a batch system signals every process of a job, and the launcher
/// passes on what it received itself.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// Whether somebody asked this process to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopFlag {
    asked: Arc<AtomicBool>,
}

impl StopFlag {
    /// Listens for USR1 from now on. Call it first of all: to others the signal means death.
    pub(crate) fn listen() -> io::Result<Self> {
        let flag = Self::default();
        signal_hook::flag::register(SIGUSR1, Arc::clone(&flag.asked))?;
        Ok(flag)
    }

    /// From now on TERM and INT ask to stop after the step under way as well, and a second one of them ends the process at once, as
    /// if nobody listened. Call it when there is something to lose.
    pub(crate) fn be_patient(&self) -> io::Result<()> {
        let mut signals = Signals::new([SIGTERM, SIGINT])?;
        let flag = self.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            let mut first = None;
            for signal in signals.forever() {
                if is_second(&mut first, Instant::now()) {
                    // It ends the process; where it cannot, the launcher kills it in time.
                    let _ = emulate_default_handler(signal);
                }
                flag.asked.store(true, Ordering::Relaxed);
            }
        })?;
        Ok(())
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

/// Whether a signal at `now` is a second request, `first` being the time of the first.
fn is_second(first: &mut Option<Instant>, now: Instant) -> bool {
    let earlier = *first.get_or_insert(now);
    now.saturating_duration_since(earlier) >= SAME_REQUEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_is_no_second_request() {
        let begun = Instant::now();
        let mut first = None;
        assert!(!is_second(&mut first, begun));
        assert!(!is_second(&mut first, begun + SAME_REQUEST / 2));
        assert!(is_second(&mut first, begun + SAME_REQUEST));
    }
}
