//! Disk space: what a set-up needs at most, and what is free.

use std::fmt;
use std::path::Path;

use rustix::fs::statvfs;

use super::Problem;
use super::requirement::Requirement;

/// A size in decimal units, as package indexes and disks are labelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} MB", self.0 as f64 / 1e6),
            1_000_000..1_000_000_000 => write!(f, "{:.0} MB", self.0 as f64 / 1e6),
            _ => write!(f, "{:.1} GB", self.0 as f64 / 1e9),
        }
    }
}

/// Room for folders, logs and what else is written meanwhile.
const MARGIN: u64 = 64_000_000;

/// The most that is on the disk at any moment while these are fetched one after the other: pip keeps a wheel twice
/// until it is done, and the wheel is removed once it is unpacked.
pub(crate) fn needed<'a>(missing: impl IntoIterator<Item = &'a Requirement>) -> Bytes {
    let mut kept = 0;
    let mut most = 0;
    for requirement in missing {
        let wheel = requirement.fetch_bytes;
        most = most.max(kept + (2 * wheel).max(wheel + requirement.unpacked_bytes));
        kept += requirement.unpacked_bytes;
    }
    Bytes(most.max(kept) + MARGIN)
}

/// Refuses when the file system of `folder`, which exists, has less than `needed` free for this user.
pub(crate) fn check(folder: &Path, needed: Bytes) -> Result<(), Problem> {
    let state = statvfs(folder).map_err(|error| Problem::write(folder, error.into()))?;
    let free = Bytes(state.f_bavail.saturating_mul(state.f_frsize));
    if free.0 < needed.0 {
        return Err(Problem::Space {
            folder: folder.to_owned(),
            needed,
            free,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn requirement(fetch_bytes: u64, unpacked_bytes: u64) -> Requirement {
        let line = String::new();
        Requirement {
            name: line.clone(),
            version: line.clone(),
            key_file: line.clone(),
            line,
            fetch_bytes,
            unpacked_bytes,
        }
    }

    #[test]
    fn the_peak_counts_wheels_only_while_they_are_there() {
        let peak = |list: &[Requirement]| needed(list).0 - MARGIN;
        assert_eq!(peak(&[requirement(500, 1000)]), 1500);
        assert_eq!(peak(&[requirement(500, 300)]), 1000);
        assert_eq!(peak(&[requirement(500, 1000), requirement(100, 200)]), 1500);
        assert_eq!(peak(&[requirement(500, 1000), requirement(400, 500)]), 1900);
    }

    #[test]
    fn too_little_space_is_refused_with_both_figures() {
        let folder = tempfile::tempdir().unwrap();
        check(folder.path(), Bytes(1)).unwrap();
        let sentence = check(folder.path(), Bytes(u64::MAX)).unwrap_err().to_string();
        assert!(
            sentence.contains("18446744073.7 GB are needed") && sentence.contains("are free"),
            "{sentence}"
        );
    }

    #[test]
    fn sizes_are_told_in_decimal_units() {
        assert_eq!(Bytes(148_047).to_string(), "0.1 MB");
        assert_eq!(Bytes(543_563_777).to_string(), "544 MB");
        assert_eq!(Bytes(2_200_000_000).to_string(), "2.2 GB");
    }
}
