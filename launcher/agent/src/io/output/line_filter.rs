//! A file of the lines, of all workers, that contain one of several texts.

use super::rotate::RotatingLog;
use memchr::memmem::Finder;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The texts to search for, and the log of matching lines. Clones share the log.
#[derive(Clone, Debug)]
pub struct LineFilter {
    texts: Arc<[Finder<'static>]>,
    /// `None` after a failed write.
    log: Arc<Mutex<Option<RotatingLog>>>,
}

impl LineFilter {
    pub fn new(texts: &[String], log: RotatingLog) -> Self {
        Self {
            texts: texts.iter().map(|text| Finder::new(text).into_owned()).collect(),
            log: Arc::new(Mutex::new(Some(log))),
        }
    }

    pub(super) fn matches(&self, line: &[u8]) -> bool {
        self.texts.iter().any(|text| text.find(line).is_some())
    }

    /// Adds whole lines to the log. The first error names the log's path; later lines are not kept.
    pub(super) fn write(&self, lines: &[u8]) -> Result<(), (PathBuf, io::Error)> {
        // The log is consistent between any two statements, so a panic elsewhere has not broken it.
        let mut held = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Err(error)) = held.as_mut().map(|log| log.write(lines)) else {
            return Ok(());
        };
        held.take().map_or(Ok(()), |log| Err((log.path, error)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn lines_with_one_of_the_texts_are_caught() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("filtered_stdout.log");
        let texts = ["apple".to_owned(), "é".to_owned()];
        let line_filter = LineFilter::new(&texts, RotatingLog::create(path.clone(), u64::MAX).unwrap());
        assert!(line_filter.matches(b"\xff an apple\n") && line_filter.matches("café".as_bytes()));
        assert!(!line_filter.matches(b"Apple\n") && !line_filter.matches(b""));
        line_filter.clone().write(b"one\n").unwrap();
        line_filter.write(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_log_that_cannot_be_written_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full.log");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let line_filter =
            LineFilter::new(&["x".to_owned()], RotatingLog::create(path.clone(), u64::MAX).unwrap());
        assert_eq!(line_filter.write(b"x\n").unwrap_err().0, path);
        assert!(line_filter.clone().write(b"x\n").is_ok());
    }
}
