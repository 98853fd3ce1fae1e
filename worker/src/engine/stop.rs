//! Requests to stop: TERM, INT and USR1 set a flag; the step loop reads it between steps, and the ranks agree on it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// Whether somebody asked this process to stop.
#[derive(Debug, Clone, Default)]
pub struct StopFlag {
    asked: Arc<AtomicBool>,
}

impl StopFlag {
    /// Listens for TERM, INT and USR1 from now on: the first asks to stop after the step under way, a second one of TERM or
    /// INT ends the process at once, as if nobody listened.
    ///
    /// # Errors
    /// Where the handlers cannot be installed.
    pub fn listen() -> io::Result<Self> {
        let flag = Self::default();
        for signal in [SIGTERM, SIGINT] {
            // Order matters: the first signal finds the flag unset and passes, the second one finds it set.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag.asked))?;
            signal_hook::flag::register(signal, Arc::clone(&flag.asked))?;
        }
        signal_hook::flag::register(SIGUSR1, Arc::clone(&flag.asked))?;
        Ok(flag)
    }

    /// Asks to stop, as a signal would.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}
