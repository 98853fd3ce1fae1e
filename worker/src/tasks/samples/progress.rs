//! Progress of the checks of files.

use dtrain_common::progress::{Progress, Unit};

/// Returns a callback that shows progress through many files of `set`.
pub(super) fn progress_callback(set: &str) -> impl FnMut(usize, usize) {
    let label = format!("checking {set}");
    let progress = Progress::of(label.clone(), 0, Unit::Things("images"));
    move |done, total| progress.set(label.clone(), done as u64, total as u64)
}
