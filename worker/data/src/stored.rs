//! The place of a file's bytes: a separate file, or a part of a larger one.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dtrain_shared_memory::MemoryError;
use serde::{Deserialize, Serialize};

use super::packed::Packed;
use super::parquet_file::Opened;
use super::regular::{self, First};

/// The part of a file on disk that is one file to a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// Bytes of it, such as a member of a tar archive.
    Range { start: u64, length: u64 },
    /// The cell of a row, from 0, and of a leaf of the schema, of a Parquet file.
    Cell { row: u64, leaf: usize },
}

/// The length that means the whole file.
const WHOLE: u64 = u64::MAX;
/// Marks the leaf of a cell. No length is so large.
const CELL: u64 = 1 << 63;

impl Part {
    /// Writes the part in two numbers, for lists that processes share.
    fn to_numbers(self) -> [u64; 2] {
        match self {
            Self::Whole => [0, WHOLE],
            Self::Range { start, length } => [start, length],
            Self::Cell { row, leaf } => [row, CELL | leaf as u64],
        }
    }

    fn of_numbers([first, second]: [u64; 2]) -> Self {
        match second {
            WHOLE => Self::Whole,
            cell if cell & CELL != 0 => Self::Cell { row: first, leaf: (cell & !CELL) as usize },
            length => Self::Range { start: first, length },
        }
    }
}

/// The parts of larger files that are the files of a list, 16 bytes each. Clones share them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Parts {
    numbers: Packed<[u64; 2]>,
    /// The Parquet files of cells that this process has opened.
    #[serde(skip)]
    opened: Arc<Opened>,
}

impl PartialEq for Parts {
    fn eq(&self, other: &Self) -> bool {
        self.numbers == other.numbers
    }
}

impl Eq for Parts {}

impl Parts {
    pub(super) fn write(parts: impl IntoIterator<Item = Part>) -> Result<Self, MemoryError> {
        let numbers = Packed::write(parts.into_iter().map(Part::to_numbers))?;
        Ok(Self { numbers, opened: Arc::default() })
    }

    pub(super) fn get(&self, at: usize) -> Part {
        Part::of_numbers(self.numbers[at])
    }

    /// Returns the file of this number; `path` is the file on disk, and `name` its name there.
    pub(super) fn stored(&self, at: usize, path: PathBuf, name: &str) -> Stored {
        let opened = Some(Arc::clone(&self.opened));
        Stored { opened, ..Stored::new(path, name, self.get(at)) }
    }

    pub(super) fn kept(&self, is_kept: impl Fn(usize) -> bool) -> Result<Self, MemoryError> {
        Ok(Self { numbers: self.numbers.kept(is_kept)?, opened: Arc::clone(&self.opened) })
    }
}

/// A file as the data set sees it. Displays as its path, or as `shard.tar: member`.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The file on disk.
    path: PathBuf,
    /// Its name in that file; empty for a whole file.
    name: String,
    part: Part,
    opened: Option<Arc<Opened>>,
}

impl Stored {
    pub(super) fn new(path: PathBuf, name: &str, part: Part) -> Self {
        Self { path, name: name.to_owned(), part, opened: None }
    }

    /// Reads all of it into `bytes`.
    pub(super) fn read(&self, bytes: &mut Vec<u8>) -> io::Result<()> {
        match self.part {
            Part::Whole => regular::read(&self.path, bytes),
            Part::Cell { .. } => self.decode(First::Whole, bytes, |_| Ok(())),
            Part::Range { length, .. } => self.decode(First::Whole, bytes, |read| {
                let is_whole = read.len() as u64 >= length;
                if is_whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            }),
        }
    }

    /// Reads the beginning into `bytes` and calls `decode`, again with more as long as that fails and there is more.
    pub(super) fn decode<T, E: From<io::Error>>(
        &self,
        first: First,
        bytes: &mut Vec<u8>,
        mut decode: impl FnMut(&[u8]) -> Result<T, E>,
    ) -> Result<T, E> {
        match self.part {
            Part::Cell { row, leaf } => {
                let opened = self.opened.clone().unwrap_or_default();
                opened.file(&self.path)?.cell(row, leaf, bytes)?;
                decode(bytes)
            }
            Part::Whole => regular::decode(&self.path, first, bytes, decode),
            Part::Range { start, length } => {
                regular::decode_range(&self.path, (start, length), first, bytes, decode)
            }
        }
    }
}

/// A whole file.
impl From<&Path> for Stored {
    fn from(path: &Path) -> Self {
        Self::new(path.to_owned(), "", Part::Whole)
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Part::Whole => write!(f, "{}", self.path.display()),
            _ => write!(f, "{}: {}", self.path.display(), self.name),
        }
    }
}
