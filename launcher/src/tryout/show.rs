//! The lines of a try: one for each part, as it ends.

use dtrain_common::progress::Progress;
use std::io::Write;
use std::time::Instant;

/// Columns of a part's name.
const NAME: usize = 24;

/// Prints the parts, each with its time. The current one has a line of progress.
pub(super) struct Show {
    begun: Instant,
    name: String,
    progress: Option<Progress>,
}

impl Show {
    /// Begins with this part.
    pub(super) fn begin(name: &str) -> Self {
        Self { begun: Instant::now(), name: name.to_owned(), progress: Some(Progress::start(name)) }
    }

    /// Returns the name of the current part.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Shows what the current part does.
    pub(super) fn says(&self, words: &str) {
        if let Some(progress) = self.progress.as_ref().filter(|_| !words.is_empty()) {
            progress.set(format!("{}: {words}", self.name), 0, 0);
        }
    }

    /// Ends the current part, and begins the next.
    pub(super) fn next(&mut self, details: &str, next: &str) {
        self.end("ok", details);
        *self = Self::begin(next);
    }

    /// Ends the current part, the last or the one that failed.
    pub(super) fn end(&mut self, word: &str, details: &str) {
        let seconds = self.begun.elapsed().as_secs_f64();
        self.row(&self.name.clone(), word, Some(seconds), details);
    }

    /// Prints a part that took this time.
    pub(super) fn row(&mut self, name: &str, word: &str, seconds: Option<f64>, details: &str) {
        // Its line is erased first.
        self.progress = None;
        let time = seconds.map_or_else(String::new, |seconds| format!("{seconds:.1} s"));
        let line = format!("  {name:<NAME$} {word:<9} {time:>8}   {details}");
        say(line.trim_end());
    }
}

/// Prints a line; a closed pipe is not an error.
pub(super) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
