//! The file system for run directories: kind, free space, right to write, locks.

use super::row::Row;
use dtrain_agent::io::process::output;
use dtrain_common::run_dir::{FileSystem, ProbeError, probe};
use dtrain_common::units::ByteSize;
use rustix::fs::{statfs, statvfs};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

const GIB: u64 = 1 << 30;
/// A few checkpoints of a small model.
const LITTLE_SPACE: u64 = 10 * GIB;
const NO_SPACE: u64 = GIB;
/// The answers of the process that tries a lock.
const LOCKED: &str = "locked";
const REFUSED: &str = "refused";

/// File systems by their magic numbers (statfs(2)), and whether other machines share them.
const KINDS: [(u64, &str, bool); 18] = [
    (0xEF53, "ext4", false),
    (0x5846_5342, "XFS", false),
    (0x9123_683E, "Btrfs", false),
    (0x2FC1_2FC1, "ZFS", false),
    (0x794C_7630, "overlayfs", false),
    (0x0102_1994, "tmpfs (memory)", false),
    (0xF2F5_2010, "F2FS", false),
    (0x6969, "NFS", true),
    (0x0BD0_0BD0, "Lustre", true),
    (0x4750_4653, "GPFS", true),
    (0x1983_0326, "BeeGFS", true),
    (0x00C3_6400, "CephFS", true),
    (0xFF53_4D42, "CIFS", true),
    (0xFE53_4D42, "SMB", true),
    (0x0102_1997, "9p", true),
    (0x6A65_6A63, "virtiofs", true),
    (0xAAD7_AAEA, "PanFS", true),
    (0x6573_5546, "FUSE", true),
];

#[derive(Debug)]
struct Reading {
    folder: PathBuf,
    magic: u64,
    free_bytes: u64,
    /// `None` for file systems without a fixed number.
    free_files: Option<u64>,
    /// The right to write, else the error.
    writable: Result<Lock, io::Error>,
    /// The file operations of a run, tried there.
    tried: Result<FileSystem, ProbeError>,
}

/// The effect of a lock on a file.
#[derive(Debug)]
enum Lock {
    /// Another process cannot take it too.
    Works,
    /// Another process takes it too.
    Ignored,
    /// The file system refuses locks.
    Unsupported(io::Error),
    /// The other process did not answer.
    Unknown,
}

/// Checks the file system of a folder that may not exist yet.
pub(super) fn check(folder: &Path) -> Vec<Row> {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let existing = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    match read(existing) {
        Ok(reading) => judge(&reading),
        Err(error) => vec![Row::fail("run directory", format!("{}: {error}", existing.display()), ANOTHER)],
    }
}

const ANOTHER: &str = "give a folder on another disk with --run-dir";

fn read(folder: &Path) -> io::Result<Reading> {
    let (kind, space) = (statfs(folder)?, statvfs(folder)?);
    Ok(Reading {
        folder: folder.to_owned(),
        magic: kind.f_type as u32 as u64,
        free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        free_files: (space.f_files > 0).then_some(space.f_favail),
        writable: try_locks(folder),
        tried: probe(folder),
    })
}

/// Locks a new file here, and lets another process try to lock it.
fn try_locks(folder: &Path) -> io::Result<Lock> {
    let file = tempfile::Builder::new().prefix(".dtrain-doctor-").tempfile_in(folder)?;
    match file.as_file().try_lock() {
        Err(TryLockError::Error(error)) => return Ok(Lock::Unsupported(error)),
        Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
        Ok(()) => {}
    }
    let mut other = Command::new("/proc/self/exe");
    let answer = output(other.args(["doctor", "--try-lock"]).arg(file.path()), Duration::from_secs(2));
    Ok(match answer.as_deref().map(str::trim) {
        Some(LOCKED) => Lock::Ignored,
        Some(REFUSED) => Lock::Works,
        _ => Lock::Unknown,
    })
}

/// Tries to lock the file, as the other process.
pub(super) fn try_lock(path: &Path) -> anyhow::Result<ExitCode> {
    let taken = File::options().write(true).open(path)?.try_lock().is_ok();
    crate::stdout::print(if taken { LOCKED } else { REFUSED })?;
    Ok(ExitCode::SUCCESS)
}

fn judge(reading: &Reading) -> Vec<Row> {
    const WHAT: &str = "run directory";
    let Reading { folder, magic, free_bytes, .. } = reading;
    let shown = folder.display();
    let (kind, is_shared) = match KINDS.iter().find(|(number, ..)| number == magic) {
        Some((_, name, is_shared)) => ((*name).to_owned(), *is_shared),
        None => (format!("file system {magic:#x}"), false),
    };
    let value = format!("{shown}: {kind}, {} free", ByteSize(*free_bytes));
    let lock = match &reading.writable {
        Ok(lock) => lock,
        Err(error) => {
            // Without the name of the temporary file.
            let error = error.to_string();
            let error = error.split(" (os error").next().unwrap_or_default();
            return vec![Row::fail(WHAT, format!("cannot write to {shown}: {error}"), ANOTHER)];
        }
    };
    let mut rows = Vec::new();
    rows.push(if *free_bytes < NO_SPACE {
        Row::fail(
            WHAT,
            format!("{value}: too little for a checkpoint"),
            "remove files, or give another --run-dir",
        )
    } else if *free_bytes < LITTLE_SPACE {
        let remedy = "remove files (`dtrain ckpt prune` removes old checkpoints), or give another --run-dir";
        Row::warn(WHAT, format!("{value}: few checkpoints fit"), remedy)
    } else if reading.free_files.is_some_and(|files| files < 10_000) {
        Row::warn(
            WHAT,
            format!("{value}, but almost no inodes"),
            "remove small files, or give another --run-dir",
        )
    } else if is_shared {
        Row::ok(WHAT, format!("{value}; a network file system"))
    } else {
        Row::ok(WHAT, value)
    });
    let lease =
        "nothing to do: dtrain protects a run by a lease file; never start two runs in one folder at once";
    match &reading.tried {
        Ok(FileSystem { links: true, sync: true }) => {
            rows.push(Row::ok("file system", "renames folders, appends, syncs, and has symbolic links"));
        }
        Ok(FileSystem { links, sync }) => {
            let unsynced = Row::warn(
                "file system",
                format!("does not write through to the disk in {shown}"),
                "after a power failure, resume from an earlier checkpoint if the newest one is damaged",
            );
            let unlinked = Row::warn(
                "file system",
                format!("no symbolic links in {shown}"),
                "nothing to do: `latest` and `best` are then files that contain a checkpoint's name",
            );
            rows.extend((!sync).then_some(unsynced).into_iter().chain((!links).then_some(unlinked)));
        }
        Err(error) => rows.push(Row::fail("file system", error.reason(), error.remedy())),
    }
    rows.push(match lock {
        Lock::Works => Row::ok("file locks", "work between processes"),
        Lock::Unknown => Row::warn(
            "file locks",
            format!("work in one process; a second one did not try them in {shown}"),
            "mount /proc, and run the command again",
        ),
        Lock::Ignored => Row::warn("file locks", format!("have no effect in {shown}"), lease),
        Lock::Unsupported(error) => {
            Row::warn("file locks", format!("are missing in {shown}: {error}"), lease)
        }
    });
    rows
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::row::Level;
    use super::*;

    fn judged(magic: u64, free_bytes: u64, writable: io::Result<Lock>) -> Vec<Row> {
        tried(magic, free_bytes, writable, Ok(FileSystem { links: true, sync: true }))
    }

    fn tried(
        magic: u64,
        free_bytes: u64,
        writable: io::Result<Lock>,
        tried: Result<FileSystem, ProbeError>,
    ) -> Vec<Row> {
        let folder = "/data".into();
        judge(&Reading { folder, magic, free_bytes, free_files: Some(1 << 20), writable, tried })
    }

    #[test]
    fn abilities_of_the_file_system_are_rows() {
        let second = |tried_so| tried(0xEF53, 20 * GIB, Ok(Lock::Works), tried_so).remove(1);
        assert_eq!(second(Ok(FileSystem { links: true, sync: true })).level, Level::Ok);
        let row = second(Ok(FileSystem { links: false, sync: true }));
        assert!(row.level == Level::Warn && row.value.contains("no symbolic links"), "{row:?}");
        let row = second(Ok(FileSystem { links: true, sync: false }));
        assert!(row.level == Level::Warn && row.value.contains("does not write through"), "{row:?}");
        let rows = tried(0xEF53, 20 * GIB, Ok(Lock::Works), Ok(FileSystem { links: false, sync: false }));
        assert_eq!(rows.iter().filter(|row| row.what == "file system").count(), 2, "{rows:?}");
        let row = second(Err(probe(Path::new("/proc")).unwrap_err()));
        assert!(row.level == Level::Fail && row.value.contains("cannot create a folder"), "{row:?}");
    }

    #[test]
    fn space_and_kind_are_named() {
        let first = |magic, free| judged(magic, free, Ok(Lock::Works)).remove(0);
        assert_eq!(first(0xEF53, 20 * GIB), Row::ok("run directory", "/data: ext4, 20.00 GiB free"));
        assert!(first(0x6969, 20 * GIB).value.ends_with("NFS, 20.00 GiB free; a network file system"));
        assert!(first(0x1234, 20 * GIB).value.contains("file system 0x1234"));
        assert_eq!(first(0xEF53, 2 * GIB).level, Level::Warn);
        let full = first(0xEF53, 1 << 20);
        assert!(full.level == Level::Fail && full.value.contains("too little for a checkpoint"), "{full:?}");
        let denied = judged(0xEF53, 20 * GIB, Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(denied.len(), 1);
        assert_eq!(denied[0].value, "cannot write to /data: permission denied");
    }

    #[test]
    fn locks_without_effect_are_told() {
        let second = |lock| judged(0x6969, 20 * GIB, Ok(lock)).remove(2);
        assert_eq!(second(Lock::Works).level, Level::Ok);
        let none = second(Lock::Unsupported(io::ErrorKind::Unsupported.into()));
        assert!(none.level == Level::Warn && none.value == "are missing in /data: unsupported", "{none:?}");
        assert!(second(Lock::Ignored).remedy.unwrap().contains("lease"));
        assert_eq!(second(Lock::Unknown).level, Level::Warn);
        // Some file systems report as many blocks as fit the number.
        assert_eq!(judged(0x6573_5546, u64::MAX, Ok(Lock::Works))[0].level, Level::Ok);
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_checked_where_it_would_be() {
        let folder = tempfile::tempdir().unwrap();
        let reading = read(folder.path()).unwrap();
        assert!(reading.writable.is_ok() && reading.free_bytes > 0, "{reading:?}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "nothing remains");
        let rows = check(&folder.path().join("a/b"));
        assert!(rows[0].value.starts_with(&folder.path().display().to_string()), "{rows:?}");
    }
}
