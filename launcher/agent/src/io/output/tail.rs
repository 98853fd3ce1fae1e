//! The last lines of a worker's standard error, for the failure banner and for finding the cause.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lines kept: more than are shown, since a traceback names the cause far above its end.
const LINES: usize = 200;
/// Bytes kept of each.
const LINE_BYTES: usize = 500;

/// The last lines of a stream. Clones share them: the reader adds, the banner reads.
#[derive(Clone, Debug, Default)]
pub struct Tail(Arc<Mutex<VecDeque<Vec<u8>>>>);

/// A tail held open for adding several lines.
pub struct Adding<'a>(MutexGuard<'a, VecDeque<Vec<u8>>>);

impl Tail {
    /// Opens the tail for adding.
    pub fn adding(&self) -> Adding<'_> {
        // The lines are whole between any two statements, so a panic elsewhere has not broken them.
        Adding(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lines, oldest first, without their ends and with what is not text replaced.
    pub fn lines(&self) -> Vec<String> {
        let held = self.adding();
        held.0
            .iter()
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect()
    }
}

impl Adding<'_> {
    /// Adds a line; blank ones are passed over.
    pub fn add(&mut self, line: &[u8]) {
        let line = line.trim_ascii_end();
        if line.is_empty() {
            return;
        }
        let mut slot = if self.0.len() < LINES {
            Vec::new()
        } else {
            self.0.pop_front().unwrap_or_default()
        };
        slot.clear();
        if line.len() > LINE_BYTES {
            slot.extend_from_slice(&line[..LINE_BYTES]);
            slot.extend_from_slice(b" ...");
        } else {
            slot.extend_from_slice(line);
        }
        self.0.push_back(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_stay() {
        let tail = Tail::default();
        let mut adding = tail.adding();
        for n in 0..230 {
            adding.add(format!("line {n}\n").as_bytes());
            adding.add(b"\n");
        }
        drop(adding);
        let lines = tail.lines();
        assert_eq!(lines.len(), LINES);
        assert_eq!(
            (lines[0].as_str(), lines[LINES - 1].as_str()),
            ("line 30", "line 229")
        );
    }

    #[test]
    fn long_lines_are_cut_and_bytes_become_text() {
        let tail = Tail::default();
        tail.adding().add(&vec![b'x'; 10_000]);
        tail.adding().add(b"\xff\r\n");
        assert_eq!(
            tail.lines(),
            [format!("{} ...", "x".repeat(LINE_BYTES)), "\u{fffd}".to_owned()]
        );
    }
}
