//! Reads the attempts of a run from its logs.

use std::fs;
use std::path::{Path, PathBuf};

use dtrain_common::run_dir::RunDir;

/// Returns how often workers were started in this run so far.
pub(crate) fn attempts(run: &RunDir) -> u32 {
    (0..).find(|attempt| !run.rank_logs(*attempt, 0).exists()).unwrap_or_default()
}

/// Returns the path of rank 0's standard error in an attempt; its progress is written there.
pub(crate) fn stderr(run: &RunDir, attempt: u32) -> PathBuf {
    run.rank_logs(attempt, 0).join("stderr.log")
}

/// Returns whether this log reports a step.
pub(crate) fn has_step(log: &Path) -> bool {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().any(|line| line.starts_with("step "))
}

/// Returns the step after which the attempt of this log resumed; 0 if it did not resume.
pub(crate) fn resumed_after(log: &Path) -> u64 {
    let text = fs::read_to_string(log).unwrap_or_default();
    let after = |line: &str| {
        let (_, step) = line.strip_prefix("resumed from ")?.rsplit_once(' ')?;
        step.parse().ok()
    };
    text.lines().find_map(after).unwrap_or(0)
}
