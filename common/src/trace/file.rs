//! `trace/rank_R.json.gz` of a run: Chrome's JSON of events, which Perfetto reads, with a section for dtrain.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Kind;
use crate::files;

/// The version of this format.
const VERSION: u32 = 1;
/// The most bytes of a file after decompression: a damaged one must not fill the memory.
const MOST_BYTES: u64 = 4 << 30;

/// The timeline of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankTrace {
    #[serde(rename = "displayTimeUnit")]
    pub unit: String,
    #[serde(rename = "dtrain")]
    pub meta: Meta,
    #[serde(rename = "traceEvents")]
    pub events: Vec<Event>,
}

/// Facts about the timeline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    pub version: u32,
    pub rank: usize,
    pub world_size: usize,
    pub host: String,
    /// `cpu` or `cuda:0`.
    pub device: String,
    /// The first and the last recorded step.
    pub steps: [u64; 2],
    /// Nanoseconds from 1970 to the time 0 of the events.
    pub base_ns: u64,
    /// The thread that runs the steps.
    pub main_thread: u64,
}

/// An event in Chrome's format. Times are in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// `X` for a span, `M` for a name of a process or thread.
    pub ph: char,
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cat: Option<Kind>,
    pub pid: u64,
    pub tid: u64,
    pub ts: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub args: Map<String, Value>,
}

impl Event {
    /// Returns a span.
    pub fn span(kind: Kind, name: impl Into<String>, (pid, tid): (u64, u64), ts: f64, dur: f64) -> Self {
        Self { ph: 'X', name: name.into(), cat: Some(kind), pid, tid, ts, dur: Some(dur), args: Map::new() }
    }

    /// Returns the event that names a process (`process_name`) or a thread (`thread_name`).
    pub fn naming(what: &str, (pid, tid): (u64, u64), name: &str) -> Self {
        let args = Map::from_iter([("name".to_owned(), Value::from(name))]);
        Self { ph: 'M', name: what.to_owned(), cat: None, pid, tid, ts: 0.0, dur: None, args }
    }

    /// Adds an argument.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.args.insert(key.to_owned(), value.into());
        self
    }

    /// Returns the end of a span.
    pub fn end(&self) -> f64 {
        self.ts + self.dur.unwrap_or(0.0)
    }

    /// Returns an argument that is a whole number.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.args.get(key)?.as_i64()
    }
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is damaged ({reason}); trace these steps again", path.display())]
    Damaged { path: PathBuf, reason: String },
    #[error("{} has version {found} of the format; this dtrain reads version {VERSION}", path.display())]
    Version { path: PathBuf, found: u32 },
}

impl RankTrace {
    pub fn new(meta: Meta, events: Vec<Event>) -> Self {
        Self { unit: "ms".to_owned(), meta: Meta { version: VERSION, ..meta }, events }
    }

    /// Writes the file whole or not at all.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        files::write_atomic(path, &self.compressed()?)
    }

    /// Returns the compressed JSON.
    pub fn compressed(&self) -> io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        serde_json::to_writer(&mut encoder, self)?;
        encoder.flush()?;
        encoder.finish()
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The file is missing, damaged or of another version.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let path_of = || path.to_owned();
        let file = File::open(path).map_err(|source| FileError::Unreadable { path: path_of(), source })?;
        let mut text = Vec::new();
        let read = GzDecoder::new(BufReader::new(file)).take(MOST_BYTES).read_to_end(&mut text);
        let damaged = |reason: String| FileError::Damaged { path: path_of(), reason };
        read.map_err(|error| damaged(error.to_string()))?;
        let read: Self = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        match read.meta.version {
            VERSION => Ok(read),
            found => Err(FileError::Version { path: path_of(), found }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_trace_is_read_as_written_and_damage_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank_1.json.gz");
        let event = Event::span(Kind::Bucket, "bucket 2", (1, 77), 1.5, 0.25).with("bytes", 1024);
        let names = Event::naming("process_name", (1, 0), "rank 1");
        let trace = RankTrace::new(Meta { rank: 1, world_size: 2, ..Meta::default() }, vec![names, event]);
        trace.write(&path).unwrap();
        assert_eq!(RankTrace::read(&path).unwrap(), trace);
        assert_eq!(trace.events[1].number("bytes"), Some(1024));

        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert!(matches!(RankTrace::read(&path), Err(FileError::Damaged { .. })));
        let later = RankTrace { meta: Meta { version: 9, ..trace.meta.clone() }, ..trace };
        later.write(&path).unwrap();
        assert!(matches!(RankTrace::read(&path), Err(FileError::Version { found: 9, .. })));
        let missing = RankTrace::read(&folder.path().join("none"));
        assert!(matches!(missing, Err(FileError::Unreadable { .. })));
    }
}
