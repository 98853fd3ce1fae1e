//! What the logs of a run say of its attempts.

use std::fs;
use std::path::{Path, PathBuf};

use dtrain_common::run_dir::RunDir;

/// How often workers were started in this run so far.
pub(crate) fn attempts(run: &RunDir) -> u32 {
    (0..).find(|attempt| !run.rank_logs(*attempt, 0).exists()).unwrap_or_default()
}

/// What rank 0 of an attempt has said; its progress goes to standard error.
pub(crate) fn stderr(run: &RunDir, attempt: u32) -> PathBuf {
    run.rank_logs(attempt, 0).join("stderr.log")
}

/// Whether a step was made, by this log.
pub(crate) fn has_step(log: &Path) -> bool {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().any(|line| line.starts_with("step "))
}

/// The step from which the attempt of this log went on; 0 where it began.
pub(crate) fn resumed_after(log: &Path) -> u64 {
    let text = fs::read_to_string(log).unwrap_or_default();
    let after = |line: &str| {
        let (_, step) = line.strip_prefix("resumed from ")?.rsplit_once(' ')?;
        step.parse().ok()
    };
    text.lines().find_map(after).unwrap_or(0)
}
