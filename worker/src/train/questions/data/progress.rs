//! Progress of `dtrain data`.

use dtrain_common::progress::{Progress as Line, Unit};

use crate::tasks::Progress;

/// Returns a function that shows how much of something is done. `verb` is what is done with it, such as `checked`.
pub(super) fn show_progress(verb: &'static str) -> Progress {
    let mut line = None;
    Box::new(move |what, done, total| match done == total {
        true => line = None,
        false => line.get_or_insert_with(|| Line::of(verb, 0, Unit::Things(""))).set(
            format!("{verb} {what}"),
            done as u64,
            total as u64,
        ),
    })
}
