//! Reads small files of a run, whatever is there instead: a reader of many runs must not wait or fill its memory.

use dtrain_common::files::none_if_missing;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::SystemTime;

/// The largest JSON file that is read; dtrain's own are far smaller.
const LONGEST: u64 = 4 << 20;
/// Bytes read from the end of `metrics.jsonl`: about a hundred steps.
const TAIL: u64 = 64 << 10;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error("{0} is not a file")]
    NotAFile(String),
    #[error("{0} has more than 4 MiB")]
    TooLong(String),
    #[error("{0} is cut off or damaged: {1}")]
    Damaged(String, #[source] serde_json::Error),
    #[error("cannot read {0}: {1}")]
    Io(String, #[source] io::Error),
}

/// Reads a JSON file; `None` if it is absent.
pub(crate) fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Problem> {
    let Some((file, length)) = open(path)? else { return Ok(None) };
    if length > LONGEST {
        return Err(Problem::TooLong(name(path)));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes).map_err(|error| Problem::Io(name(path), error))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| Problem::Damaged(name(path), error))
}

/// The last lines of a file.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    bytes: Vec<u8>,
    /// The latest change of the file.
    pub(super) changed: Option<SystemTime>,
}

impl Tail {
    /// Reads the end of a file; empty if it is absent.
    pub(crate) fn read(path: &Path) -> Result<Self, Problem> {
        let Some((mut file, length)) = open(path)? else { return Ok(Self::default()) };
        let mut read = || {
            let from = file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
            let mut bytes = Vec::new();
            (&file).take(TAIL).read_to_end(&mut bytes)?;
            if from > 0 {
                // Begins within a line.
                let rest = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
                bytes.drain(..rest);
            }
            Ok(Self { bytes, changed: file.metadata()?.modified().ok() })
        };
        read().map_err(|error| Problem::Io(name(path), error))
    }

    /// Returns the lines from the last to the first, without a last line that is still being written.
    pub(crate) fn lines_backwards(&self) -> impl Iterator<Item = &[u8]> {
        let end = self.bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        self.bytes[..end].rsplit(|byte| *byte == b'\n')
    }
}

/// Opens a regular file, with its length; `None` if it is absent. Opening a pipe would wait for its writer.
pub(crate) fn open(path: &Path) -> Result<Option<(File, u64)>, Problem> {
    let failed = |error| Problem::Io(name(path), error);
    let Some(about) = none_if_missing(fs::metadata(path)).map_err(failed)? else { return Ok(None) };
    if !about.is_file() {
        return Err(Problem::NotAFile(name(path)));
    }
    let file = none_if_missing(File::open(path)).map_err(failed)?;
    Ok(file.map(|file| (file, about.len())))
}

/// Returns the file's name for messages.
pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use serde_json::Value;

    #[test]
    fn whatever_a_file_is_reading_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let said = || json::<Value>(&path).map(|value| value.is_some()).map_err(|error| error.to_string());
        assert_eq!(said(), Ok(false));
        fs::write(&path, "{\"a\": ").unwrap();
        assert!(said().unwrap_err().starts_with("a.json is cut off or damaged: EOF"));
        File::create(&path).unwrap().set_len(LONGEST + 1).unwrap();
        assert_eq!(said().unwrap_err(), "a.json has more than 4 MiB");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(said().unwrap_err(), "a.json is not a file");
        assert!(Tail::read(&path).is_err());
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(json::<Value>(&pipe).is_err());
    }

    #[test]
    fn a_tail_has_whole_lines_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let tail = |text: &str| -> Vec<String> {
            fs::write(&path, text).unwrap();
            let tail = Tail::read(&path).unwrap();
            tail.lines_backwards().map(|line| String::from_utf8_lossy(line).into_owned()).collect()
        };
        assert_eq!(tail("1\n2\n3"), ["2", "1"]);
        assert_eq!(tail("1\n2\n"), ["2", "1"]);
        assert_eq!(tail("").concat() + &tail("cut off").concat(), "");
        let long = format!("first {}\nlast\n", "x".repeat(TAIL as usize));
        assert_eq!(tail(&long), ["last"]);
    }
}
