//! How far reading or writing many bytes has come, on a terminal.

use dtrain_agent::io::output::{Stream, draws_frames};
use dtrain_common::text::size;
use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Less than this is done before anybody would read a line about it.
const LARGE: u64 = 256 << 20;
/// Time between two lines.
const PACE: Duration = Duration::from_millis(100);

/// A line of standard error that is painted over, and wiped out in the end. Several threads may count at a time.
#[derive(Debug)]
pub(super) struct Progress {
    label: String,
    total: u64,
    done: AtomicU64,
    /// When it was painted last; none where it is never to be.
    painted: Option<Mutex<Instant>>,
}

impl Progress {
    /// Of `total` bytes; shown for many of them and on a terminal only.
    pub(super) fn new(label: impl Into<String>, total: u64) -> Self {
        Self {
            label: label.into(),
            total,
            done: AtomicU64::new(0),
            painted: (total >= LARGE && draws_frames(Stream::Stderr)).then(|| Mutex::new(Instant::now())),
        }
    }

    /// So many more are done.
    pub(super) fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Who finds it taken leaves the painting to the other.
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
