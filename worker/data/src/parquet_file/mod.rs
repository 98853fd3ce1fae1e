//! Parquet files: any cell alone, and whole columns of texts and numbers.
//!
//! A cell is read by its page, if the file has an index of pages and they are small. Otherwise the cells of its row group are
//! unpacked once into the user's cache folder, for all processes of the machine.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};

use parquet::basic::{Compression, ConvertedType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::serialized_reader::SerializedPageReader;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::at::ReadAt;
use super::caught::caught;
use super::regular;

mod at;
mod texts;
mod unpacked;

/// The files that a process has opened, by path.
#[derive(Debug, Default)]
pub(super) struct Opened(Mutex<HashMap<PathBuf, Arc<ParquetFile>>>);

impl Opened {
    /// Returns a file, which is opened once.
    pub(super) fn file(&self, path: &Path) -> io::Result<Arc<ParquetFile>> {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(path) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(ParquetFile::open(path)?);
        files.insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }
}

/// The most images of a page that is read for one of them.
const MOST_OF_A_PAGE: f64 = 8.0;
/// Cells that are decoded at once.
const AT_ONCE: usize = 64;

/// An open file.
#[derive(Debug)]
pub(super) struct ParquetFile {
    path: PathBuf,
    file: Arc<ReadAt>,
    metadata: ParquetMetaData,
    /// The first row of each row group, and the number of rows.
    first_rows: Vec<u64>,
}

/// How the cells of a column are read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Access {
    /// Rows that are read by their page.
    pub(super) by_page: u64,
    /// The pages of these rows.
    pub(super) pages: u64,
    /// Rows that are read by their row group.
    pub(super) by_group: u64,
    /// Their row groups, and the bytes of these when they are unpacked.
    pub(super) groups: u64,
    pub(super) group_bytes: u64,
}

impl Access {
    pub(super) fn add(&mut self, other: Self) {
        self.by_page += other.by_page;
        self.pages += other.pages;
        self.by_group += other.by_group;
        self.groups += other.groups;
        self.group_bytes += other.group_bytes;
    }
}

/// Raises the limit of open files as far as the process may: a set may have thousands of files, which stay open.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!("the limit of open files cannot be raised: {error}");
    }
}

impl ParquetFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        static RAISED: Once = Once::new();
        RAISED.call_once(raise_open_files);
        let file = Arc::new(ReadAt::new(regular::open_file(path)?)?);
        let metadata = guarded(|| {
            let reader = ParquetMetaDataReader::new().with_offset_index_policy(PageIndexPolicy::Optional);
            reader.parse_and_finish(&*file)
        })?;
        let mut first_rows = vec![0];
        for group in metadata.row_groups() {
            let rows =
                u64::try_from(group.num_rows()).map_err(|_| damage("a row group has a negative size"))?;
            first_rows.push(first_rows.last().copied().unwrap_or_default() + rows);
        }
        Ok(Self { path: path.to_owned(), file, metadata, first_rows })
    }

    pub(super) fn rows(&self) -> u64 {
        self.first_rows.last().copied().unwrap_or_default()
    }

    /// Returns the names of the columns: leaves with a dot between the names of groups.
    pub(super) fn columns(&self) -> Vec<String> {
        let leaves = self.metadata.file_metadata().schema_descr().columns();
        leaves.iter().map(|leaf| leaf.path().string()).collect()
    }

    /// Returns the number of the leaf of this name.
    pub(super) fn leaf(&self, name: &str) -> Option<usize> {
        let leaves = self.metadata.file_metadata().schema_descr().columns();
        leaves.iter().position(|leaf| leaf.path().string() == name)
    }

    /// Describes the type of a leaf.
    pub(super) fn type_of(&self, leaf: usize) -> String {
        let leaf = self.metadata.file_metadata().schema_descr().column(leaf);
        let kind = match leaf.logical_type_ref() {
            Some(logical) => format!("{logical:?}"),
            None if leaf.converted_type() != ConvertedType::NONE => leaf.converted_type().to_string(),
            None => leaf.physical_type().to_string(),
        };
        if leaf.max_rep_level() > 0 { format!("a list of {kind}") } else { kind }
    }

    /// Returns whether a leaf has bytes that are no text, one value in each row.
    pub(super) fn is_binary(&self, leaf: usize) -> bool {
        let leaf = self.metadata.file_metadata().schema_descr().column(leaf);
        let has_type = leaf.logical_type_ref().is_some() || leaf.converted_type() != ConvertedType::NONE;
        leaf.physical_type() == Type::BYTE_ARRAY && !has_type && leaf.max_rep_level() == 0
    }

    /// Returns the compression of a leaf, if this program has not its decoder.
    pub(super) fn unknown_compression(&self, leaf: usize) -> Option<String> {
        use Compression::{GZIP, LZ4, LZ4_RAW, SNAPPY, UNCOMPRESSED, ZSTD};
        let of = self.metadata.row_groups().iter().map(|group| group.column(leaf).compression());
        let known =
            |kind: &Compression| matches!(kind, UNCOMPRESSED | SNAPPY | GZIP(_) | ZSTD(_) | LZ4 | LZ4_RAW);
        { of }.find(|kind| !known(kind)).map(|kind| format!("{kind:?}"))
    }

    /// Returns a text of the footer.
    pub(super) fn note(&self, key: &str) -> Option<&str> {
        let notes = self.metadata.file_metadata().key_value_metadata()?;
        notes.iter().find(|note| note.key == key)?.value.as_deref()
    }

    /// Returns how the cells of a leaf are read.
    pub(super) fn access(&self, leaf: usize) -> Access {
        let mut access = Access::default();
        for (number, group) in self.metadata.row_groups().iter().enumerate() {
            let rows = group.num_rows() as u64;
            match self.small_pages(number, leaf) {
                Some(pages) => {
                    access.by_page += rows;
                    access.pages += pages as u64;
                }
                None => {
                    access.by_group += rows;
                    access.groups += 1;
                    access.group_bytes += group.column(leaf).uncompressed_size().max(0) as u64;
                }
            }
        }
        access
    }

    /// Returns the number of a row group's pages, if the file has their index and they have few rows each.
    fn small_pages(&self, group: usize, leaf: usize) -> Option<usize> {
        let index = self.metadata.page_index_for_row_group(group);
        let pages = index.page_locations(leaf)?.len();
        let rows = self.metadata.row_group(group).num_rows() as f64;
        (rows <= MOST_OF_A_PAGE * pages as f64).then_some(pages)
    }

    /// Replaces `bytes` with a cell; an empty one if it has no value.
    pub(super) fn cell(&self, row: u64, leaf: usize, bytes: &mut Vec<u8>) -> io::Result<()> {
        let group = self.first_rows.partition_point(|first| *first <= row).saturating_sub(1);
        if row >= self.rows() {
            return Err(damage(&format!("it has {} rows now, and no row {row}", self.rows())));
        }
        let inner = row - self.first_rows[group];
        if self.small_pages(group, leaf).is_none() && unpacked::cell(self, (group, leaf), inner, bytes)? {
            return Ok(());
        }
        bytes.clear();
        self.visit(group, leaf, inner as usize, 1, &mut |cell| {
            bytes.extend_from_slice(cell.unwrap_or_default());
            Ok(())
        })
    }

    /// Calls `act` with the cells of rows of a row group, in order; None for cells without a value.
    fn visit(
        &self,
        group: usize,
        leaf: usize,
        first: usize,
        count: usize,
        act: &mut dyn FnMut(Option<&[u8]>) -> io::Result<()>,
    ) -> io::Result<()> {
        let ColumnReader::ByteArrayColumnReader(mut reader) = self.reader(group, leaf)? else {
            return Err(damage("the column has no bytes"));
        };
        guarded(|| skip(&mut reader, first))?;
        let most = self.metadata.file_metadata().schema_descr().column(leaf).max_def_level();
        let (mut levels, mut values) = (Vec::new(), Vec::<ByteArray>::new());
        let mut done = 0;
        while done < count {
            levels.clear();
            values.clear();
            let wanted = AT_ONCE.min(count - done);
            let (read, _, _) = guarded(|| reader.read_records(wanted, Some(&mut levels), None, &mut values))?;
            if read == 0 {
                return Err(damage("a row group ends before its last row"));
            }
            let mut found = values.iter();
            for row in 0..read {
                let has_value = most == 0 || levels.get(row) == Some(&most);
                act(if has_value { found.next().map(ByteArray::data) } else { None })?;
            }
            done += read;
        }
        Ok(())
    }

    /// Opens the pages of a leaf in a row group.
    fn reader(&self, group: usize, leaf: usize) -> io::Result<ColumnReader> {
        let about = self.metadata.row_group(group);
        let pages = self.metadata.page_index_for_row_group(group).page_locations(leaf).cloned();
        guarded(|| {
            let rows = about.num_rows() as usize;
            let pages = SerializedPageReader::new(Arc::clone(&self.file), about.column(leaf), rows, pages)?;
            Ok(get_column_reader(about.column(leaf).column_descr_ptr(), Box::new(pages)))
        })
    }
}

fn skip(reader: &mut ColumnReaderImpl<ByteArrayType>, count: usize) -> Result<(), ParquetError> {
    match reader.skip_records(count)? {
        skipped if skipped == count => Ok(()),
        _ => Err(ParquetError::EOF("a row group ends before its last row".to_owned())),
    }
}

/// Runs the decoder, which may panic on damaged files, and turns its errors into those of a file with the remedy.
fn guarded<T>(decode: impl FnOnce() -> Result<T, ParquetError>) -> io::Result<T> {
    match caught(decode) {
        Some(Ok(value)) => Ok(value),
        Some(Err(ParquetError::External(error))) => Err(match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => damage(&error.to_string()),
        }),
        Some(Err(error)) => {
            let text = error.to_string();
            Err(damage(text.strip_prefix("Parquet error: ").or(text.strip_prefix("EOF: ")).unwrap_or(&text)))
        }
        None => Err(damage("the decoder failed")),
    }
}

/// Makes an error that has its remedy.
fn damage(problem: &str) -> io::Error {
    let message = format!("the Parquet file is damaged: {problem}; copy or download it again");
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests;
