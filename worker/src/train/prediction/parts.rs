//! The parts of a prediction: what ranks have written so far. A prediction that was interrupted continues after them.
//!
//! Beside OUT stands the folder `OUT.partial`. It has `request.json`, the parts `part-ATTEMPT-RANK.jsonl` with a row in each line,
//! and `out`, which becomes OUT when all rows are there. So OUT is whole or does not exist.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::iter::Peekable;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::rows::Row;
use crate::setup::predict_error::PredictError;

type Result<T> = std::result::Result<T, PredictError>;

/// The folder of a prediction that is not complete.
#[derive(Debug, Clone)]
pub(super) struct Partial {
    out: PathBuf,
    folder: PathBuf,
}

pub(super) fn failed(path: &Path) -> impl FnOnce(io::Error) -> PredictError {
    let path = path.to_owned();
    move |source| PredictError::Io { path, source }
}

impl Partial {
    pub(super) fn of(out: &Path) -> Self {
        // Without a slash at the end, which would put the folder into OUT.
        let out: PathBuf = out.components().collect();
        let mut name = OsString::from(out.as_os_str());
        name.push(".partial");
        Self { out, folder: name.into() }
    }

    /// Returns the file or folder that becomes OUT.
    pub(super) fn out(&self) -> PathBuf {
        self.folder.join("out")
    }

    fn request(&self) -> PathBuf {
        self.folder.join("request.json")
    }

    pub(super) fn part(&self, attempt: usize, rank: usize) -> PathBuf {
        self.folder.join(format!("part-{attempt:04}-{rank:04}.jsonl"))
    }

    /// Begins the prediction, or continues it if the folder holds parts of the same request. Returns the number of this attempt,
    /// and which of `count` inputs have a row. Rank 0 calls it.
    pub(super) fn begin(&self, request: &Map<String, Value>, count: usize) -> Result<(usize, Vec<bool>)> {
        let is_empty = |folder: &Path| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
        if self.out.symlink_metadata().is_ok() && !is_empty(&self.out) {
            return Err(PredictError::Exists(self.out.clone()));
        }
        let mut done = vec![false; count];
        let path = self.request();
        match fs::read(&path) {
            Ok(bytes) => {
                let differing = differing(&bytes, request);
                if !differing.is_empty() {
                    return Err(PredictError::OtherRequest(self.folder.clone(), differing));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = self.out.parent().filter(|parent| !parent.as_os_str().is_empty());
                if let Some(parent) = parent {
                    fs::create_dir_all(parent).map_err(failed(parent))?;
                }
                fs::create_dir_all(&self.folder).map_err(failed(&self.folder))?;
                let bytes =
                    serde_json::to_vec_pretty(request).map_err(io::Error::from).map_err(failed(&path))?;
                dtrain_common::files::write_atomic(&path, &bytes).map_err(failed(&path))?;
            }
            Err(error) => return Err(failed(&path)(error)),
        }
        let mut attempt = 0;
        for path in self.parts()? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let number = name.split('-').nth(1).and_then(|number| number.parse::<usize>().ok());
            attempt = attempt.max(number.map_or(0, |number| number + 1));
            for row in Rows::open(&path)? {
                let row = row?;
                // An input without a prediction is tried again: the reason may be gone.
                if let (None, Some(done)) = (&row.error, done.get_mut(row.at as usize)) {
                    *done = true;
                }
            }
        }
        Ok((attempt, done))
    }

    fn parts(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.folder).map_err(failed(&self.folder))?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut paths: Vec<PathBuf> = paths.collect::<io::Result<_>>().map_err(failed(&self.folder))?;
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "jsonl"));
        paths.sort();
        Ok(paths)
    }

    /// Returns all rows in the order of the inputs, each once.
    pub(super) fn joined(&self) -> Result<Joined> {
        let paths = self.parts()?;
        let parts = paths.iter().map(|path| Ok(Rows::open(path)?.peekable()));
        Ok(Joined { parts: parts.collect::<Result<_>>()?, last: None })
    }

    /// Makes OUT of what is written, and removes the parts.
    pub(super) fn finish(&self) -> Result<()> {
        let written = self.out();
        fs::rename(&written, &self.out).map_err(failed(&self.out))?;
        fs::remove_dir_all(&self.folder).map_err(failed(&self.folder))
    }
}

/// Returns the keys with other values in the request of `bytes`.
fn differing(bytes: &[u8], request: &Map<String, Value>) -> Vec<String> {
    let Ok(then) = serde_json::from_slice::<BTreeMap<String, Value>>(bytes) else {
        return vec!["request".to_owned()];
    };
    let keys = then.keys().chain(request.keys().filter(|key| !then.contains_key(*key)));
    keys.filter(|key| then.get(*key) != request.get(*key)).cloned().collect()
}

/// The part that a rank writes.
pub(super) struct Part {
    path: PathBuf,
    file: File,
}

impl Part {
    pub(super) fn create(path: PathBuf) -> Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(&path).map_err(failed(&path))?;
        Ok(Self { path, file })
    }

    /// Adds rows. All of them are in the file when it returns.
    pub(super) fn add(&mut self, rows: &[Row]) -> Result<()> {
        let mut bytes = Vec::new();
        for row in rows {
            serde_json::to_writer(&mut bytes, row).map_err(io::Error::from).map_err(failed(&self.path))?;
            bytes.push(b'\n');
        }
        self.file.write_all(&bytes).map_err(failed(&self.path))
    }
}

/// The rows of a part. A last line that was cut off is none.
pub(super) struct Rows {
    path: PathBuf,
    lines: BufReader<File>,
    number: usize,
}

impl Rows {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(failed(path))?;
        Ok(Self { path: path.to_owned(), lines: BufReader::new(file), number: 0 })
    }
}

impl Iterator for Rows {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        if let Err(error) = self.lines.read_until(b'\n', &mut line) {
            return Some(Err(failed(&self.path)(error)));
        }
        self.number += 1;
        if line.last() != Some(&b'\n') {
            return None;
        }
        let row = serde_json::from_slice(&line);
        Some(row.map_err(|source| PredictError::Part { path: self.path.clone(), line: self.number, source }))
    }
}

/// The rows of all parts in the order of the inputs.
pub(super) struct Joined {
    parts: Vec<Peekable<Rows>>,
    last: Option<u32>,
}

impl Iterator for Joined {
    type Item = Result<Row>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (mut least, mut part) = (None, None);
            for (number, rows) in self.parts.iter_mut().enumerate() {
                match rows.peek() {
                    // Of the rows of an input, that of the last attempt, whose part is the last.
                    Some(Ok(row)) if least.is_none_or(|least| row.at <= least) => {
                        (least, part) = (Some(row.at), Some(number));
                    }
                    Some(Err(_)) => return rows.next(),
                    _ => {}
                }
            }
            let row = self.parts[part?].next()?;
            // Each rank writes its rows in order.
            if let Ok(row) = &row {
                if self.last == Some(row.at) {
                    continue;
                }
                self.last = Some(row.at);
            }
            return Some(row);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::rows::Cell;
    use super::*;

    fn row(at: u32) -> Row {
        Row::of(at, vec![Cell::Text(format!("row {at}"))])
    }

    fn request(weights: &str) -> Map<String, Value> {
        Map::from_iter([("weights".to_owned(), weights.into()), ("input".to_owned(), "a".into())])
    }

    #[test]
    fn an_interrupted_prediction_continues_after_its_rows() {
        let folder = tempfile::tempdir().unwrap();
        let partial = Partial::of(&folder.path().join("deep/out.csv"));
        assert_eq!(partial.begin(&request("raw"), 5).unwrap(), (0, vec![false; 5]));
        Part::create(partial.part(0, 0)).unwrap().add(&[row(0), row(1)]).unwrap();
        let mut second = Part::create(partial.part(0, 1)).unwrap();
        second.add(&[row(3)]).unwrap();
        // The process ended in the middle of a line.
        second.file.write_all(b"{\"at\":4,\"err").unwrap();
        assert_eq!(partial.begin(&request("raw"), 5).unwrap(), (1, vec![true, true, false, true, false]));
        Part::create(partial.part(1, 0)).unwrap().add(&[row(2), row(4)]).unwrap();
        let rows: Vec<Row> = partial.joined().unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(rows, [0, 1, 2, 3, 4].map(row));
        fs::write(partial.out(), "rows").unwrap();
        partial.finish().unwrap();
        assert!(!partial.folder.exists());
        assert!(matches!(partial.begin(&request("raw"), 5), Err(PredictError::Exists(_))));
    }

    #[test]
    fn inputs_without_a_prediction_are_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        // As a shell completes the name of a folder.
        let partial = Partial::of(&folder.path().join("masks/"));
        partial.begin(&request("raw"), 3).unwrap();
        let failed = |at| Row::failed(at, "no disk".to_owned());
        Part::create(partial.part(0, 0)).unwrap().add(&[failed(0), row(1), failed(2)]).unwrap();
        assert_eq!(partial.begin(&request("raw"), 3).unwrap(), (1, vec![false, true, false]));
        Part::create(partial.part(1, 0)).unwrap().add(&[row(0), failed(2)]).unwrap();
        let rows: Vec<Row> = partial.joined().unwrap().collect::<Result<_>>().unwrap();
        assert_eq!(rows, [row(0), row(1), failed(2)]);
        fs::create_dir(partial.out()).unwrap();
        partial.finish().unwrap();
        assert!(folder.path().join("masks").is_dir() && !partial.folder.exists());
    }

    #[test]
    fn another_request_does_not_continue() {
        let folder = tempfile::tempdir().unwrap();
        let partial = Partial::of(&folder.path().join("out.csv"));
        partial.begin(&request("raw"), 1).unwrap();
        match partial.begin(&request("average"), 1) {
            Err(PredictError::OtherRequest(_, differing)) => assert_eq!(differing, ["weights"]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_damaged_row_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let partial = Partial::of(&folder.path().join("out"));
        partial.begin(&request("raw"), 1).unwrap();
        fs::write(partial.part(0, 0), "{\"at\":0}\nno row\n").unwrap();
        assert!(matches!(partial.begin(&request("raw"), 1), Err(PredictError::Part { line: 2, .. })));
    }
}
