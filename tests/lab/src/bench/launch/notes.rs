//! Reads the workers' notes of a death: files with times of the monotonic clock, in nanoseconds.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::super::figures::{Figures, Metric};
use super::{DYING, WORKERS};
use crate::stats::percentile;

/// Returns milliseconds from the death to the SIGTERM of the last other worker.
pub(super) fn time_to_sigterm(folder: &Path) -> Result<f64> {
    time_to_last_note(folder, "stopped", (0..WORKERS).filter(|rank| *rank != DYING))
}

/// Returns milliseconds from the death to the new start of the last worker.
pub(super) fn time_to_restart(folder: &Path) -> Result<f64> {
    time_to_last_note(folder, "restarted", 0..WORKERS)
}

/// Returns milliseconds from the death to the last note of that name. Every listed rank must have one.
fn time_to_last_note(folder: &Path, name: &str, ranks: impl Iterator<Item = u32>) -> Result<f64> {
    time_from(time(folder, &format!("died.{DYING}"))?, folder, name, ranks)
}

/// Returns milliseconds from a time to the last note of that name. Every listed rank must have one.
pub(super) fn time_from(
    death: u64,
    folder: &Path,
    name: &str,
    ranks: impl Iterator<Item = u32>,
) -> Result<f64> {
    let mut last = death;
    for rank in ranks {
        let noted = time(folder, &format!("{name}.{rank}"))?;
        ensure!(noted >= death, "{name}.{rank} is earlier than the event before it");
        last = last.max(noted);
    }
    // A launch lasts seconds: the conversion is exact enough.
    Ok((last - death) as f64 / 1e6)
}

pub(super) fn time(folder: &Path, name: &str) -> Result<u64> {
    let path = folder.join(name);
    let text = fs::read_to_string(&path).with_context(|| format!("no worker wrote {}", path.display()))?;
    text.trim().parse().with_context(|| format!("{} has no time", path.display()))
}

/// Returns the figures of a round's deaths.
pub(super) fn death_figures(times: &[f64]) -> Result<Figures> {
    let at = |share| percentile(times, share).context("no deaths measured");
    Ok([(Metric::DeathMs, at(0.5)?), (Metric::DeathP99Ms, at(0.99)?)].into())
}

/// Returns the figures of a round's restarts.
pub(super) fn restart_figures(times: &[f64]) -> Result<Figures> {
    let middle = percentile(times, 0.5).context("no restarts measured")?;
    Ok([(Metric::RestartMs, middle)].into())
}
