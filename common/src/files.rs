//! Atomic writes: a file exists whole or not at all. And the hash of a file.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

/// Prefix of the names of temporary files and links.
const PREFIX: &str = ".dtrain-";
const SUFFIX: &str = ".tmp";

/// Removes temporary files and folders of this module that a killed process left. No other process may write to
/// `folder`.
pub fn remove_temporary(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) {
            match entry.file_type()?.is_dir() {
                true => std::fs::remove_dir_all(entry.path())?,
                false => std::fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

/// Makes a folder in `folder` that is removed with the value.
pub fn temporary_folder(folder: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).tempdir_in(folder)
}

/// Returns what to do about an error of writing or reading files, after a semicolon; empty if only the place of the error
/// tells.
pub fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "; free disk space",
        io::ErrorKind::QuotaExceeded => "; remove files, or ask for a larger quota",
        io::ErrorKind::PermissionDenied => "; make it and its folder writable for this user",
        io::ErrorKind::ReadOnlyFilesystem => "; mount the file system writable, or use another folder",
        io::ErrorKind::StaleNetworkFileHandle => {
            "; the file server has lost the file or restarted: mount the file system again"
        }
        _ => "",
    }
}

/// As [`remedy`], for an action that may be one of reading, such as `read` or `list the folder`.
pub fn remedy_of(action: &str, error: &io::Error) -> &'static str {
    let reads = ["read", "list", "open", "check"].iter().any(|verb| action.starts_with(verb));
    match error.kind() {
        io::ErrorKind::PermissionDenied if reads => "; let this user read it",
        _ => remedy(error),
    }
}

/// Returns this path, or if there is such a file, the first of `NAME-1.ENDING`, `NAME-2.ENDING` and so on that is free.
pub fn unused(path: &Path) -> PathBuf {
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    let numbered = (1..).map(|number| path.with_file_name(format!("{stem}-{number}{ending}")));
    std::iter::once(path.to_owned()).chain(numbered).find(is_free).unwrap_or_else(|| path.to_owned())
}

/// Creates an empty file in memory, which no process can execute where the kernel knows that (since Linux 6.3): with
/// vm.memfd_noexec = 2 it refuses others.
pub fn in_memory(name: &str) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC;
    let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        created => created,
    };
    Ok(file?.into())
}

/// Turns `NotFound` into `None`. Other failures stay errors.
pub fn none_if_missing<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Returns the file's BLAKE3 hash in hexadecimal digits. Reads it in parts, so that a large file needs no memory.
pub fn hash(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Writes `bytes` to `path` whole or not at all, also after a crash: writes a temporary file beside it,
/// flushes it, renames it to `path` and flushes the folder. After an error `path` is unchanged.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_atomic_with(path, true, |file| file.write_all(bytes))
}

/// As [`write_atomic`], but `write` writes the content. Without `replace`, an existing file is an error of
/// the kind [`io::ErrorKind::AlreadyExists`].
pub fn write_atomic_with<E: From<io::Error>>(
    path: &Path,
    replace: bool,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let folder = folder_of(path)?;
    let mut temporary = tempfile::Builder::new()
        .prefix(PREFIX)
        .suffix(SUFFIX)
        // The usual mode of a new file, not the private mode of temporary files: run directories are shared.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    write(temporary.as_file_mut())?;
    sync(temporary.as_file())?;
    if replace {
        temporary.persist(path).map_err(|error| error.error)?;
    } else {
        temporary.persist_noclobber(path).map_err(|error| error.error)?;
    }
    Ok(sync_folder(folder)?)
}

/// Makes `link` a symbolic link to `target`, stored as given, and replaces an earlier link in one step. After
/// an error, such as for a `link` that is a folder, `link` is unchanged.
pub fn symlink_atomic(target: &Path, link: &Path) -> io::Result<()> {
    let folder = folder_of(link)?;
    tempfile::Builder::new()
        .prefix(PREFIX)
        .suffix(SUFFIX)
        .make_in(folder, |path| std::os::unix::fs::symlink(target, path))?
        .into_temp_path()
        .persist(link)
        .map_err(|error| error.error)?;
    sync_folder(folder)
}

/// Returns the folder of `path`; `.` for a bare name.
fn folder_of(path: &Path) -> io::Result<&Path> {
    match path.parent() {
        None => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} names no file", path.display()))),
        Some(folder) if folder.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(folder) => Ok(folder),
    }
}

/// Makes a rename within `folder` survive a power failure, if the file system can.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    sync(&File::open(folder)?).map(drop)
}

/// Writes a file or folder through to the disk. Returns false if the file system does not do that, as network and FUSE
/// file systems for folders: the content is written nevertheless.
pub fn sync(file: &File) -> io::Result<bool> {
    match file.sync_all() {
        Ok(()) => Ok(true),
        Err(error) if is_unsupported(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether an error says that the file system lacks the operation.
fn is_unsupported(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn names(folder: &Path) -> Vec<PathBuf> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into()).collect();
        names.sort();
        names
    }

    #[test]
    fn writing_and_replacing_leave_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(folder.path()), [PathBuf::from("a.json")]);
    }

    #[test]
    fn files_are_replaced_only_with_replace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let write = |replace, text: &'static str| {
            write_atomic_with(&path, replace, |file| file.write_all(text.as_bytes()))
        };
        write(false, "one").unwrap();
        assert_eq!(write(false, "two").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        write(true, "two").unwrap();
        let stop = |_: &mut File| Err(io::Error::other("stopped"));
        write_atomic_with(&path, true, stop).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(folder.path()), [PathBuf::from("a")]);
    }

    #[test]
    fn a_written_file_has_the_usual_mode() {
        let folder = tempfile::tempdir().unwrap();
        write_atomic(&folder.path().join("ours"), b"x").unwrap();
        fs::write(folder.path().join("usual"), b"x").unwrap();
        let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode("ours"), mode("usual"));
    }

    #[test]
    fn a_failed_write_leaves_no_trace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        fs::create_dir(&path).unwrap();
        assert!(write_atomic(&path, b"x").is_err(), "a folder is not replaced by a file");
        assert_eq!(names(folder.path()), [PathBuf::from("taken")]);
        assert!(write_atomic(&folder.path().join("no/such/folder"), b"x").is_err());
        assert!(write_atomic(Path::new("/"), b"x").is_err());
    }

    #[test]
    fn links_are_replaced_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("latest");
        symlink_atomic(Path::new("step-1"), &link).unwrap();
        symlink_atomic(Path::new("step-2"), &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("step-2"));
        assert_eq!(names(folder.path()), [PathBuf::from("latest")]);
    }

    #[test]
    fn only_temporary_files_of_a_killed_process_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at(".dtrain-abc.tmp"), "x").unwrap();
        std::os::unix::fs::symlink("nowhere", at(".dtrain-link.tmp")).unwrap();
        fs::create_dir_all(at(".dtrain-probe.tmp/folder")).unwrap();
        for kept in ["a.tmp", ".dtrain-abc", "manifest.json"] {
            fs::write(at(kept), "x").unwrap();
        }
        remove_temporary(folder.path()).unwrap();
        assert_eq!(names(folder.path()), [".dtrain-abc", "a.tmp", "manifest.json"].map(PathBuf::from));
    }

    #[test]
    fn a_link_does_not_replace_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latest");
        fs::create_dir(&path).unwrap();
        assert!(symlink_atomic(Path::new("step-1"), &path).is_err());
        assert_eq!(names(folder.path()), [PathBuf::from("latest")]);
    }
}
