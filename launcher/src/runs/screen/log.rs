//! The last lines of a rank's log, read as it grows.

use super::super::files::Problem;
use super::super::growing::Growing;
use dtrain_agent::io::output::Stream;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Bytes of the first read, before the end of the file.
const TAIL: u64 = 256 << 10;
/// The most lines that are kept.
const LINES: usize = 2000;
/// The most bytes of a line; the rest is left out.
const LONGEST: usize = 16 << 10;

/// The last lines of a log.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Log {
    /// Without control characters.
    pub(super) lines: VecDeque<String>,
    /// Lines that were read before these.
    pub(super) before: usize,
}

impl Log {
    /// Returns the number of the line after the last one.
    pub(super) fn end(&self) -> usize {
        self.before + self.lines.len()
    }

    fn push(&mut self, line: &[u8]) {
        self.lines.push_back(readable(line));
        if self.lines.len() > LINES {
            self.lines.pop_front();
            self.before += 1;
        }
    }
}

/// A log file, and its last lines.
#[derive(Debug)]
pub(super) struct LogFile {
    pub(super) path: PathBuf,
    file: Growing,
    log: Log,
    /// The last line, if it has no end yet: often a progress bar.
    rest: Vec<u8>,
}

impl LogFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { file: Growing::new(path.clone(), TAIL), path, log: Log::default(), rest: Vec::new() }
    }

    /// Reads the new lines.
    pub(super) fn read(&mut self) -> Result<Log, Problem> {
        loop {
            let grown = self.file.read(TAIL)?;
            if grown.is_new {
                (self.log, self.rest) = (Log::default(), Vec::new());
            }
            for part in grown.bytes.split_inclusive(|byte| *byte == b'\n') {
                let (text, ends) = part
                    .split_last()
                    .filter(|(last, _)| **last == b'\n')
                    .map_or((part, false), |(_, text)| (text, true));
                self.extend(text);
                if ends {
                    self.log.push(&std::mem::take(&mut self.rest));
                }
            }
            if !grown.has_more {
                break;
            }
        }
        let mut log = self.log.clone();
        if !self.rest.is_empty() {
            log.push(&self.rest);
        }
        Ok(log)
    }

    fn extend(&mut self, text: &[u8]) {
        // A carriage return begins the line again; a bar may draw itself a thousand times before its end.
        if self.rest.len() + text.len() > LONGEST
            && let Some(at) = text.iter().rposition(|byte| *byte == b'\r')
        {
            self.rest.clear();
            self.rest.extend_from_slice(&text[at..]);
        } else {
            self.rest.extend_from_slice(text);
        }
        self.rest.truncate(LONGEST);
    }
}

/// Returns the stream that says most: a trainer reports on standard error, a program on standard output until it fails.
pub(super) fn best_stream(folder: &Path, is_trainer: bool, is_running: bool) -> Stream {
    let has = |stream| std::fs::metadata(path(folder, stream)).is_ok_and(|about| about.len() > 0);
    match (has(Stream::Stdout), has(Stream::Stderr)) {
        (true, true) if is_running && !is_trainer => Stream::Stdout,
        (true, false) => Stream::Stdout,
        _ => Stream::Stderr,
    }
}

/// Returns the path of a stream's log in the folder of a rank's logs.
pub(super) fn path(folder: &Path, stream: Stream) -> PathBuf {
    folder.join(format!("{}.log", stream.name()))
}

/// Returns what a terminal would show of the line: the text after the last carriage return, without colours.
fn readable(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches('\r');
    let text = text.rsplit('\r').find(|part| !part.trim().is_empty()).unwrap_or_default();
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => {
                // A sequence like ESC [ 31 m; of others only the next character is left out.
                if chars.next() == Some('[') {
                    while chars.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
                }
            }
            '\t' => out.push_str(&" ".repeat(8 - out.chars().count() % 8)),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs::{self, File};
    use std::io::Write;

    fn lines(log: &Log) -> Vec<&str> {
        log.lines.iter().map(String::as_str).collect()
    }

    #[test]
    fn a_log_is_followed_with_its_unfinished_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stderr.log");
        let mut file = LogFile::new(path.clone());
        assert_eq!(file.read().unwrap(), Log::default());
        fs::write(&path, "one\n 10%\r 20%").unwrap();
        assert_eq!(lines(&file.read().unwrap()), ["one", " 20%"]);
        let mut open = File::options().append(true).open(&path).unwrap();
        open.write_all(b"\r 30%\r\nthree\n\n").unwrap();
        assert_eq!(lines(&file.read().unwrap()), ["one", " 30%", "three", ""]);
        for number in 0..3000 {
            writeln!(open, "{number}").unwrap();
        }
        let log = file.read().unwrap();
        assert_eq!((log.lines.len(), log.before, log.end()), (2000, 1004, 3004));
        assert_eq!(log.lines[1999], "2999");
        fs::rename(&path, path.with_extension("log.1")).unwrap();
        fs::write(&path, "new\n").unwrap();
        assert_eq!(lines(&file.read().unwrap()), ["new"]);
    }

    #[test]
    fn a_terminal_is_not_told_what_a_log_holds() {
        assert_eq!(readable(b"\x1b[31mred\x1b[0m\x07 \xff\ttab"), "red \u{fffd}   tab");
        assert_eq!(readable(b"\x1b"), "");
        assert_eq!(readable(b" 10%\r 20%\r   \r"), " 20%");
    }

    #[test]
    fn a_bar_without_end_does_not_fill_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stderr.log");
        let bar: String = (0..40_000).map(|number| format!("\r step {number}")).collect();
        fs::write(&path, bar).unwrap();
        let mut file = LogFile::new(path);
        assert_eq!(lines(&file.read().unwrap()), [" step 39999"]);
        assert!(file.rest.len() <= LONGEST);
    }

    #[test]
    fn the_stream_with_the_most_to_say_is_shown_first() {
        let folder = tempfile::tempdir().unwrap();
        let best = |is_trainer, is_running| best_stream(folder.path(), is_trainer, is_running);
        assert_eq!(best(true, true), Stream::Stderr);
        fs::write(folder.path().join("stdout.log"), "x").unwrap();
        assert_eq!(best(true, true), Stream::Stdout);
        fs::write(folder.path().join("stderr.log"), "x").unwrap();
        assert_eq!(
            [best(true, true), best(false, true), best(false, false)],
            [Stream::Stderr, Stream::Stdout, Stream::Stderr]
        );
    }
}
