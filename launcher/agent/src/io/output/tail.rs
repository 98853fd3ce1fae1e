//! The last lines of a worker's standard error, or of both streams if they are together, for the failure banner and to
//! find the cause.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lines kept: more than are shown, because a traceback names the cause far above its end.
const LINES: usize = 200;
/// Bytes kept of each line.
const LINE_BYTES: usize = 500;

/// The last lines. Clones share them: the reader adds lines, the banner reads them.
#[derive(Clone, Debug, Default)]
pub struct Tail(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Tail {
    fn held(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        // The lines are consistent between any two statements, so a panic elsewhere has not broken them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lines, oldest first, without line ends; invalid UTF-8 is replaced.
    pub fn lines(&self) -> Vec<String> {
        let text = |line: &Vec<u8>| String::from_utf8_lossy(line).into_owned();
        self.held().iter().map(text).collect()
    }

    /// Adds a line, unless it is blank.
    pub fn add(&self, line: &[u8]) {
        let line = line.trim_ascii_end();
        if line.is_empty() {
            return;
        }
        let line = match line.split_at_checked(LINE_BYTES) {
            Some((begin, rest)) if !rest.is_empty() => [begin, b" ..."].concat(),
            _ => line.to_vec(),
        };
        let mut held = self.held();
        if held.len() == LINES {
            held.pop_front();
        }
        held.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_stay() {
        let tail = Tail::default();
        for n in 0..230 {
            tail.add(format!("line {n}\n").as_bytes());
            tail.add(b"\n");
        }
        let lines = tail.lines();
        assert_eq!(lines.len(), LINES);
        assert_eq!((lines[0].as_str(), lines[LINES - 1].as_str()), ("line 30", "line 229"));
    }

    #[test]
    fn long_lines_are_cut_and_bytes_become_text() {
        let tail = Tail::default();
        tail.add(&vec![b'x'; 10_000]);
        tail.add(b"\xff\r\n");
        assert_eq!(tail.lines(), [format!("{} ...", "x".repeat(LINE_BYTES)), "\u{fffd}".to_owned()]);
    }
}
