//! Progress of the checks of files.

/// Returns a callback that reports progress through many files.
pub(super) fn progress_callback<'a>(
    report: &'a mut dyn FnMut(String),
    folder: &'a str,
) -> impl FnMut(usize, usize) {
    /// Files between two reports.
    const REPORT_EVERY: usize = 50_000;
    let mut reported = 0;
    move |done, total| {
        if done - reported >= REPORT_EVERY {
            reported = done;
            report(format!("checked {done} of {total} images in {folder}"));
        }
    }
}
