//! The progress of reading or writing many bytes, on a terminal.

use dtrain_agent::io::output::{Stream, can_draw_frames};
use dtrain_common::text::size;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Below this the work ends before a user could read the progress.
const LARGE: u64 = 256 << 20;
/// Time between two updates of the line.
const PACE: Duration = Duration::from_millis(100);

/// A line of standard error that is redrawn, and erased at the end. Several threads may call it.
#[derive(Debug)]
pub(super) struct Progress {
    label: String,
    total: u64,
    done: AtomicU64,
    /// When the line was drawn last; `None` if it is never shown.
    painted: Option<Mutex<Instant>>,
}

impl Progress {
    /// Starts the progress of `total` bytes; shown only for many bytes and on a terminal.
    pub(super) fn new(label: impl Into<String>, total: u64) -> Self {
        Self {
            label: label.into(),
            total,
            done: AtomicU64::new(0),
            painted: (total >= LARGE && can_draw_frames(Stream::Stderr)).then(|| Mutex::new(Instant::now())),
        }
    }

    /// Adds finished bytes.
    pub(super) fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // If another thread holds the lock, that thread draws.
        let Some(Ok(mut painted)) = self.painted.as_ref().map(Mutex::try_lock) else {
            return;
        };
        if painted.elapsed() >= PACE {
            *painted = Instant::now();
            let _ = write!(
                io::stderr(),
                "\r{} {} of {} ({}%)\x1b[K",
                self.label,
                size(done),
                size(self.total),
                done.saturating_mul(100) / self.total.max(1)
            );
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.painted.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
