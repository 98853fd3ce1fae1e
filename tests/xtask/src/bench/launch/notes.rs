//! What workers noted of a death: files that hold a time of the machine's monotonic clock, in nanoseconds.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::super::figures::{Figures, Metric};
use super::super::stats::percentile;
use super::{DYING, WORKERS};

/// Milliseconds from the death until the last of the others had its SIGTERM.
pub(super) fn until_told(folder: &Path) -> Result<f64> {
    until_all(folder, "told", (0..WORKERS).filter(|rank| *rank != DYING))
}

/// Milliseconds from the death until the last of all workers ran again.
pub(super) fn until_again(folder: &Path) -> Result<f64> {
    until_all(folder, "again", 0..WORKERS)
}

/// Milliseconds from the death to the last note of that name, which all these ranks must have made.
fn until_all(folder: &Path, name: &str, ranks: impl Iterator<Item = u32>) -> Result<f64> {
    let death = time(folder, &format!("died.{DYING}"))?;
    let mut last = death;
    for rank in ranks {
        let noted = time(folder, &format!("{name}.{rank}"))?;
        ensure!(noted >= death, "rank {rank} was stopped before there was a death");
        last = last.max(noted);
    }
    // A launch lasts seconds, so the conversion loses nothing.
    Ok((last - death) as f64 / 1e6)
}

fn time(folder: &Path, name: &str) -> Result<u64> {
    let path = folder.join(name);
    let text =
        fs::read_to_string(&path).with_context(|| format!("no worker has written {}", path.display()))?;
    text.trim()
        .parse()
        .with_context(|| format!("{} holds no time", path.display()))
}

/// Of the deaths of a round.
pub(super) fn of_deaths(times: &[f64]) -> Result<Figures> {
    let at = |share| percentile(times, share).context("there is no death to take a time of");
    Ok([(Metric::DeathMs, at(0.5)?), (Metric::DeathP99Ms, at(0.99)?)].into())
}

/// Of the restarts of a round.
pub(super) fn of_restarts(times: &[f64]) -> Result<Figures> {
    let middle = percentile(times, 0.5).context("there is no restart to take a time of")?;
    Ok([(Metric::RestartMs, middle)].into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn scene(notes: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in notes {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn the_last_that_is_told_counts() {
        let folder = scene(&[
            ("died.1", "5000000"),
            ("told.0", "6000000"),
            ("told.2", "8500000"),
            ("told.3", "6500000"),
        ]);
        assert_eq!(until_told(folder.path()).unwrap(), 3.5);
        // The one that has died is told nothing, but starts again.
        for rank in [0, 2, 3] {
            fs::write(folder.path().join(format!("again.{rank}")), "9000000").unwrap();
        }
        let error = until_again(folder.path()).unwrap_err().to_string();
        assert!(error.contains("again.1"), "{error}");
        fs::write(folder.path().join("again.1"), "10000000\n").unwrap();
        assert_eq!(until_again(folder.path()).unwrap(), 5.0);
    }

    #[test]
    fn notes_that_are_absent_early_or_no_times_are_no_figures() {
        let complaint = |told: &[(&str, &str)]| {
            let folder = scene(&[&[("died.1", "5"), ("told.0", "6"), ("told.2", "6")], told].concat());
            format!("{:#}", until_told(folder.path()).unwrap_err())
        };
        assert!(complaint(&[]).contains("told.3"));
        assert!(complaint(&[("told.3", "soon")]).contains("holds no time"));
        assert!(complaint(&[("told.3", "4")]).contains("rank 3 was stopped before"));
        assert!(of_deaths(&[]).is_err() && of_restarts(&[]).is_err());
    }

    #[test]
    fn deaths_have_a_middle_and_an_end() {
        let times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let expected = [(Metric::DeathMs, 50.0), (Metric::DeathP99Ms, 99.0)];
        assert_eq!(of_deaths(&times).unwrap(), expected.into());
    }
}
