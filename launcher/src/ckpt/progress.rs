//! The progress of reading or writing many bytes, on a terminal.

use super::problem::{failed, sentence};
use anyhow::Context;
use dtrain_agent::io::output::{Stream, can_draw_frames};
use dtrain_agent::io::process::handlers;
use dtrain_agent::signals;
use dtrain_common::manifest::Manifest;
use dtrain_common::text::size;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Returns where the number of the first signal to stop will be; 0 until then. The signals no longer end the program.
pub(super) fn stop_signal() -> anyhow::Result<Arc<AtomicI32>> {
    let stop = Arc::new(AtomicI32::new(0));
    let signal = Arc::clone(&stop);
    handlers::listen(&signals::STOP, move |number, _| {
        let _ = signal.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
    })
    .context("cannot receive signals")?;
    Ok(stop)
}

/// Reads every byte of the files that are `wanted`, and compares their checksums. `remedy` ends the error.
pub(super) fn check_files(
    folder: &Path,
    manifest: &Manifest,
    wanted: impl Fn(&str) -> bool,
    remedy: &str,
) -> anyhow::Result<()> {
    let bytes = manifest.files.iter().filter(|entry| wanted(&entry.name)).map(|entry| entry.bytes).sum();
    let progress = Progress::new(format!("checking {}", folder.display()), bytes);
    let errors = manifest.errors(folder, wanted, |bytes| progress.add(bytes));
    drop(progress);
    if errors.is_empty() {
        return Ok(());
    }
    let problems: Vec<_> = errors.iter().map(sentence).collect();
    let (folder, problems) = (folder.display(), problems.join("; "));
    Err(failed(anyhow::anyhow!("the checkpoint {folder} is damaged, {remedy}: {problems}")))
}

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
