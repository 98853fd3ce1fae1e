//! Progress on standard error: one line of a terminal that changes, and a line now and then elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::tasks::Progress;

/// Returns a function that shows how much of something is done. `verb` is what is done with it, such as `checked`.
pub(super) fn show_progress(verb: &'static str) -> Progress {
    let is_terminal = std::io::stderr().is_terminal();
    let every = Duration::from_millis(if is_terminal { 200 } else { 5_000 });
    let mut shown = Instant::now();
    let mut is_open = false;
    Box::new(move |what, done, total| {
        let mut out = std::io::stderr().lock();
        if done == total {
            if std::mem::take(&mut is_open) {
                // Clears the line.
                let _ = write!(out, "\r\x1b[K");
            }
        } else if shown.elapsed() >= every {
            shown = Instant::now();
            let text = format!("{verb} {done} of {total} in {what}");
            is_open = is_terminal;
            let _ = match is_terminal {
                true => write!(out, "\r\x1b[K{text}"),
                false => writeln!(out, "{text}"),
            };
        }
        let _ = out.flush();
    })
}
