//! Reading and writing many bytes: requests to stop, and the check of checksums.

use super::problem::{failed, sentence};
use anyhow::Context;
use dtrain_agent::io::process::handlers;
use dtrain_agent::signals;
use dtrain_common::manifest::Manifest;
use dtrain_common::progress::{Progress, Unit};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

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
    let progress = Progress::of(format!("checking {}", folder.display()), bytes, Unit::Bytes);
    let errors = manifest.errors(folder, wanted, |bytes| progress.add(bytes));
    drop(progress);
    if errors.is_empty() {
        return Ok(());
    }
    let problems: Vec<_> = errors.iter().map(sentence).collect();
    let (folder, problems) = (folder.display(), problems.join("; "));
    Err(failed(anyhow::anyhow!("the checkpoint {folder} is damaged, {remedy}: {problems}")))
}
