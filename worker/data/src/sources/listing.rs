//! The images below a folder.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::error::DataError;
use super::super::ignored::{Ignored, is_image};
use super::super::names::listed;
use super::super::paths::Listing;
use super::super::table_problem::{CLASSES, TARGETS};

pub(super) const SPLITS: &str = "data.root, data.train and data.test";

pub(super) struct Entry {
    pub(super) name: String,
    pub(super) is_folder: bool,
}

impl Entry {
    pub(super) fn is_image(&self) -> bool {
        !self.is_folder && is_image(&self.name)
    }
}

/// Lists the visible entries of a folder by name. A broken link counts as a file, which is then bad.
pub(super) fn list(folder: &Path) -> Result<Vec<Entry>, DataError> {
    let mut entries = entries(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Returns the visible entries of a folder in any order.
fn entries(folder: &Path) -> Result<impl Iterator<Item = Result<Entry, DataError>>, DataError> {
    let unreadable = |source| DataError::UnreadableFolder(folder.to_path_buf(), source);
    Ok(fs::read_dir(folder).map_err(unreadable)?.filter_map(move |entry| {
        let read = || {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(b".") {
                return Ok(None);
            }
            let kind = entry.file_type().map_err(unreadable)?;
            let is_folder = kind.is_dir() || kind.is_symlink() && entry.path().is_dir();
            // Other files are ignored whatever their names; only used files need UTF-8 names.
            match name.into_string() {
                Ok(name) => Ok(Some(Entry { name, is_folder })),
                Err(name) => {
                    let found = Entry { name: name.to_string_lossy().into_owned(), is_folder };
                    match found.is_folder || found.is_image() {
                        true => Err(DataError::NotUnicode(entry.path())),
                        false => Ok(None),
                    }
                }
            }
        };
        read().transpose()
    }))
}

pub(super) fn canonical(folder: &Path) -> Result<PathBuf, DataError> {
    let unreadable = |source| DataError::UnreadableFolder(folder.to_path_buf(), source);
    folder.canonicalize().map_err(unreadable)
}

/// Adds the images below `folder`, those whose names `is_wanted`, to `images`, as `prefix/...` (or without a prefix), and counts
/// other files except a table beside them.
pub(super) fn list_images(
    folder: &Path,
    prefix: &str,
    is_wanted: fn(&str) -> bool,
    visited: &mut HashSet<PathBuf>,
    images: &mut Listing,
    ignored: &mut Ignored,
) -> Result<(), DataError> {
    if !visited.insert(canonical(folder)?) {
        return Ok(());
    }
    images.enter(prefix);
    let mut folders = Vec::new();
    for entry in entries(folder)? {
        let entry = entry?;
        if entry.is_folder {
            folders.push(entry.name);
        } else if is_wanted(&entry.name) {
            images.add(&entry.name);
        } else if !(prefix.is_empty() && [TARGETS, CLASSES].contains(&entry.name.as_str())) {
            ignored.count(&entry.name);
        }
    }
    folders.sort_unstable();
    for name in folders {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        list_images(&folder.join(&name), &path, is_wanted, visited, images, ignored)?;
    }
    Ok(())
}

/// Lists the images below a folder of `root`, those whose names `is_wanted`, in any order; `settings` are the keys that name the
/// folder.
pub(super) fn image_files(
    root: &Path,
    folder: &Path,
    settings: &str,
    is_wanted: fn(&str) -> bool,
    ignored: &mut Ignored,
) -> Result<Listing, DataError> {
    drop(entries(folder).map_err(|error| folder_error(error, root, folder, settings))?);
    let (mut images, mut others) = (Listing::default(), Ignored::default());
    list_images(folder, "", is_wanted, &mut HashSet::new(), &mut images, &mut others)?;
    if images.len() == 0 {
        return Err(DataError::NoImages(folder.to_path_buf(), Box::new(others)));
    }
    ignored.add(&others);
    Ok(images)
}

/// Turns an error of listing the split's folder into one that lists the existing folders.
pub(super) fn folder_error(error: DataError, root: &Path, folder: &Path, settings: &str) -> DataError {
    let DataError::UnreadableFolder(path, source) = error else { return error };
    match source.kind() {
        io::ErrorKind::NotFound => {
            let hint = list(root).map(|entries| {
                let folders = entries.into_iter().filter(|entry| entry.is_folder);
                let there = match folders.map(|entry| entry.name).collect::<Vec<_>>().as_slice() {
                    [] => "has no folders".to_owned(),
                    names => format!("has the folders {}", listed(names)),
                };
                format!("{} {there}; set {settings} to existing folders", root.display())
            });
            let no_root = |_| "set data.root to the folder that holds the splits".to_owned();
            DataError::MissingFolder(folder.to_path_buf(), hint.unwrap_or_else(no_root))
        }
        io::ErrorKind::NotADirectory if !root.is_dir() => DataError::NotAFolder(root.to_path_buf()),
        io::ErrorKind::NotADirectory => DataError::NotAFolder(path),
        _ => DataError::UnreadableFolder(path, source),
    }
}
