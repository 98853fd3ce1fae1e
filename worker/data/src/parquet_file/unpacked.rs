//! The cells of a row group in the user's cache folder, which the processes of a machine share.
//!
//! A file has the place of each cell and of the end, as 64-bit numbers, then the cells. It is named by the Parquet file's size and
//! time of change, so a changed file is unpacked anew.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

use dtrain_common::progress::{Progress, Unit};
use rustix::fs::{FlockOperation, flock, statvfs};

use super::super::cache_folder;
use super::ParquetFile;

/// The part of the file system that stays free.
const FREE_PART: u64 = 10;

/// Replaces `bytes` with a cell of a row group, which is unpacked if it is not. Returns false if there is no room for it.
pub(super) fn cell(
    file: &ParquetFile,
    (group, leaf): (usize, usize),
    row: u64,
    bytes: &mut Vec<u8>,
) -> io::Result<bool> {
    let Some(path) = place(file, group, leaf)? else {
        warn_once("there is no cache folder: set XDG_CACHE_HOME");
        return Ok(false);
    };
    // Another process may remove it to make room.
    for _ in 0..2 {
        if let Ok(unpacked) = File::open(&path) {
            read(&unpacked, row, bytes)?;
            return Ok(true);
        }
        if let Err(reason) = unpack(file, (group, leaf), &path)? {
            warn_once(&reason);
            return Ok(false);
        }
    }
    Ok(false)
}

/// Reports that the cells of a row group are decoded again for each sample.
fn warn_once(reason: &str) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "row groups of Parquet files are read again for each sample, which is slow, because {reason}; or write the files with an \
             index of pages and few images in a page"
        );
    });
}

fn place(file: &ParquetFile, group: usize, leaf: usize) -> io::Result<Option<PathBuf>> {
    let about = file.file.file().metadata()?;
    let name = format!("{:x}-{:x}-{:x}-{group}-{leaf}", about.len(), about.mtime(), about.mtime_nsec());
    Ok(cache_folder::of_file("parquet", &file.path).map(|folder| folder.join(name)))
}

fn read(unpacked: &File, row: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut places = [0u8; 16];
    unpacked.read_exact_at(&mut places, 8 * row)?;
    let (start, end) = places.split_at(8);
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let (start, end) = (number(start), number(end));
    bytes.clear();
    bytes.resize(end.saturating_sub(start) as usize, 0);
    unpacked.read_exact_at(bytes, start)
}

/// Unpacks a row group, unless another process does. The inner error says why there is no room.
fn unpack(file: &ParquetFile, (group, leaf): (usize, usize), path: &Path) -> io::Result<Result<(), String>> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let lock = fs::create_dir_all(folder).and_then(|()| File::create(path.with_extension("lock")));
    let lock = match lock {
        Ok(lock) => lock,
        Err(error) => return Ok(Err(format!("{} cannot be written: {error}", folder.display()))),
    };
    rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockExclusive))?;
    if path.exists() {
        return Ok(Ok(()));
    }
    let about = file.metadata.row_group(group);
    let rows = about.num_rows() as usize;
    let needed = about.column(leaf).uncompressed_size().max(0) as u64 + 8 * rows as u64;
    if let Err(reason) = make_room(folder, needed) {
        return Ok(Err(reason));
    }
    let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Steps that wait for it show nothing themselves.
    let progress = Progress::of(format!("unpacking row group {group} of {name}"), needed, Unit::Bytes);
    let written = cache_folder::write_by(path, |out| {
        let mut places = Vec::new();
        let mut end = 8 * (rows as u64 + 1);
        out.seek(SeekFrom::Start(end))?;
        let mut cells = BufWriter::with_capacity(1 << 18, &*out);
        file.visit(group, leaf, 0, rows, &mut |cell| {
            places.extend(end.to_le_bytes());
            let cell = cell.unwrap_or_default();
            end += cell.len() as u64;
            progress.add(cell.len() as u64 + 8);
            cells.write_all(cell)
        })?;
        places.extend(end.to_le_bytes());
        cells.flush()?;
        drop(cells);
        out.write_all_at(&places, 0)
    });
    let _ = fs::remove_file(path.with_extension("lock"));
    match written {
        // Others may have filled or removed the folder.
        Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::NotFound) => {
            Ok(Err(format!("{} cannot be written: {error}", folder.display())))
        }
        other => other.map(Ok),
    }
}

/// Removes unpacked row groups of other files, the oldest first, until there is room.
fn make_room(folder: &Path, needed: u64) -> Result<(), String> {
    let free = || {
        let system = statvfs(folder)
            .map_err(|error| format!("{} cannot be asked for its room: {error}", folder.display()))?;
        let (free, all) = (system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize);
        Ok::<_, String>(free.saturating_sub(all / FREE_PART))
    };
    if free()? >= needed {
        return Ok(());
    }
    let of_others = folder.parent().into_iter().flat_map(fs::read_dir).flatten().flatten();
    let of_others = of_others.map(|entry| entry.path()).filter(|other| other != folder);
    let files = of_others.flat_map(fs::read_dir).flatten().flatten();
    // Locks and what others are writing have an ending.
    let files = files.filter(|entry| entry.path().extension().is_none());
    let mut files: Vec<_> =
        files.filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()))).collect();
    files.sort();
    for (_, path) in files {
        let _ = fs::remove_file(path);
        if free()? >= needed {
            return Ok(());
        }
    }
    Err(format!("{} has no room for {needed} bytes beside the tenth that stays free", folder.display()))
}
