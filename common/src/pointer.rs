//! The names of checkpoints' folders, and `latest` and `best`: symbolic links to them. On a file system without links, a file
//! with the folder's name.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{symlink_atomic, write_atomic};

const STEP_PREFIX: &str = "step-";

/// The most bytes of a file that names a folder.
const LONGEST: u64 = 64;

/// Returns the folder name of the checkpoint after `step` optimizer steps, such as `step-00000120`.
pub fn folder_name(step: u64) -> String {
    format!("{STEP_PREFIX}{step:08}")
}

/// Returns the step of a checkpoint folder's name, if it has the form of [`folder_name`].
pub fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(STEP_PREFIX)?.parse().ok()?;
    (name == folder_name(step)).then_some(step)
}

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
pub(crate) fn remove(link: &Path) -> io::Result<()> {
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
pub(crate) fn is_copy(link: &Path) -> bool {
    link.symlink_metadata().is_ok_and(|about| about.is_dir())
}
