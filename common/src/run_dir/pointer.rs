//! `latest` and `best`: symbolic links to checkpoints' folders. On a file system without links, a file with the
//! folder's name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::step_of;
use crate::files::{symlink_atomic, write_atomic};

/// The most bytes of a file that names a folder.
const LONGEST: u64 = 64;

/// Makes `link` name the folder `name` beside it, in one step. The file is written like a manifest, so it can be written
/// wherever a checkpoint can.
pub fn point(link: &Path, name: &str) -> io::Result<()> {
    if target(link).is_some_and(|target| target == Path::new(name)) {
        return Ok(());
    }
    // File systems without links refuse them by many errors: EPERM, ENOTSUP, ENOSYS, EROFS, EIO.
    symlink_atomic(Path::new(name), link).or_else(|_| write_atomic(link, format!("{name}\n").as_bytes()))
}

/// Removes a link or its file, if there is one.
pub(super) fn remove(link: &Path) -> io::Result<()> {
    match link.symlink_metadata() {
        Ok(about) if !about.is_dir() => fs::remove_file(link),
        _ => Ok(()),
    }
}

/// Returns the folder that a link or its file names, as written there.
pub fn target(link: &Path) -> Option<PathBuf> {
    let about = link.symlink_metadata().ok()?;
    if about.is_symlink() {
        return fs::read_link(link).ok();
    }
    if !about.is_file() || about.len() > LONGEST {
        return None;
    }
    let name = fs::read_to_string(link).ok()?;
    step_of(name.trim()).map(|_| name.trim().into())
}

/// Returns the checkpoint's folder if `path` is a file that names it, otherwise `path`.
pub fn follow(path: &Path) -> PathBuf {
    let is_file = path.metadata().is_ok_and(|about| about.is_file());
    let named = target(path).filter(|_| is_file).map(|name| path.with_file_name(name));
    named.filter(|folder| folder.is_dir()).unwrap_or_else(|| path.to_owned())
}

/// Returns whether a copy made a folder of the link.
pub(super) fn is_copy(link: &Path) -> bool {
    link.symlink_metadata().is_ok_and(|about| about.is_dir())
}
