//! The list of images under `root/split/class/`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::check::{CheckReport, ImageList, Target};
use super::dataset::Field;
use super::error::{BadSample, DataError, Result, listed};
use super::ignored::{EXTENSIONS, Ignored};
use super::target_table::TARGETS;
use super::unicode_form;

/// One image: its class and its path below `root/split`, with `/` between names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample(
    /// Number of the class.
    pub u32,
    /// Path below the split's folder.
    pub String,
);

/// The classes and images of one split, in an order that depends on names alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageIndex {
    pub root: PathBuf,
    /// The split's folder below the root, such as `train`.
    pub split: String,
    /// Class names; a class's number is its index here.
    pub classes: Vec<String>,
    /// The images, sorted by class and then by path.
    pub samples: Vec<Sample>,
    /// Width and height of all images if they are not resized: the required size, or the size found.
    #[serde(default)]
    pub size: Option<(u32, u32)>,
    /// Unused files below the split's folder; known only after a scan.
    #[serde(skip)]
    pub ignored: Ignored,
}

impl ImageIndex {
    /// Lists `root/split/<class>/**/*.png` and the like.
    ///
    /// Classes are the folders of the split, sorted by name; images are sorted by path, also those nested
    /// deeper below a class. Hidden names (with a leading dot) are ignored. Files of other kinds, and files
    /// beside the class folders, are counted. Links are followed, except to the split's folder and to those
    /// above it: they hold the images of other classes. A folder that is reached twice within a class is
    /// listed once.
    ///
    /// For other splits, `classes` are the classes of the training split: they give the numbers. The other
    /// split may lack some classes but must not have more.
    pub fn scan(root: &Path, split: &str, classes: Option<&[String]>) -> Result<Self, DataError> {
        let folder = root.join(split);
        let entries = list(&folder).map_err(|error| folder_error(error, root, &folder, SPLITS))?;
        let folders = entries.iter().filter(|entry| entry.is_folder);
        let names: Vec<String> = folders.map(|entry| entry.name.clone()).collect();
        if names.is_empty() {
            let loose_images = entries.iter().filter(|entry| entry.is_image()).count();
            return Err(DataError::NoClasses(folder, loose_images));
        }
        let classes = classes.map_or_else(|| names.clone(), <[String]>::to_vec);
        let known: HashSet<&String> = classes.iter().collect();
        let unknown: Vec<String> = names.iter().filter(|name| !known.contains(name)).cloned().collect();
        if !unknown.is_empty() {
            // Classes that this split lacks are no error, unless they are these.
            let lacking = classes.iter().filter(|class| names.binary_search(class).is_err());
            let remedy = unicode_form::remedy(
                &folder,
                unknown.iter().map(String::as_str),
                lacking.map(String::as_str),
            );
            return Err(DataError::UnknownClasses(folder, unknown, remedy));
        }
        let above: HashSet<PathBuf> = canonical(&folder)?.ancestors().map(Path::to_path_buf).collect();
        let (mut samples, mut ignored) = (Vec::new(), Ignored::default());
        entries.iter().filter(|entry| !entry.is_folder).for_each(|entry| ignored.count(&entry.name));
        let mut empty = Vec::new();
        for (number, class) in (0u32..).zip(&classes) {
            if names.binary_search(class).is_err() {
                continue;
            }
            let (mut paths, mut visited) = (Vec::new(), above.clone());
            list_images(&folder.join(class), class, &mut visited, &mut paths, &mut ignored)?;
            if paths.is_empty() {
                empty.push(class.clone());
            }
            paths.sort_unstable();
            samples.extend(paths.into_iter().map(|path| Sample(number, path)));
        }
        if !empty.is_empty() {
            return Err(DataError::EmptyClasses(folder, empty));
        }
        Ok(Self { root: root.to_path_buf(), split: split.to_owned(), classes, samples, size: None, ignored })
    }

    /// Returns the index without the samples that `report` found bad. Errors: more than 1% bad samples, a
    /// class without good samples, and different sizes of images that are not resized.
    pub fn without_bad(&self, report: &CheckReport) -> Result<Self, DataError> {
        let samples = report.good(&self.samples)?;
        let kept: HashSet<u32> = samples.iter().map(|sample| sample.0).collect();
        if let Some(Sample(lost, _)) = self.samples.iter().find(|sample| !kept.contains(&sample.0)) {
            let is_lost = |bad: &&BadSample| self.samples[bad.index].0 == *lost;
            let of_class = report.bad.iter().filter(is_lost).cloned().collect();
            return Err(DataError::ClassLost(self.classes[*lost as usize].clone(), of_class));
        }
        Ok(Self { samples, size: report.common_size(self, self.size)?, ..self.clone() })
    }
}

impl ImageList for ImageIndex {
    fn count(&self) -> usize {
        self.samples.len()
    }

    fn image_path(&self, sample: usize) -> PathBuf {
        self.root.join(&self.split).join(&self.samples[sample].1)
    }

    fn target(&self, sample: usize) -> Target<'_> {
        Target::Label(self.samples[sample].0)
    }

    fn target_field(&self, _: usize, _: usize) -> Field {
        Field::i64("label", [])
    }
}

pub(super) const SPLITS: &str = "data.root, data.train and data.test";

struct Entry {
    name: String,
    is_folder: bool,
}

impl Entry {
    fn is_image(&self) -> bool {
        let extension = Path::new(&self.name).extension().and_then(|extension| extension.to_str());
        !self.is_folder
            && extension.is_some_and(|it| EXTENSIONS.iter().any(|known| it.eq_ignore_ascii_case(known)))
    }
}

/// Lists the visible entries of a folder by name. A broken link counts as a file, which is then bad.
fn list(folder: &Path) -> Result<Vec<Entry>, DataError> {
    let unreadable = |source| DataError::UnreadableFolder(folder.to_path_buf(), source);
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let kind = entry.file_type().map_err(unreadable)?;
        let found = Entry {
            name: name.to_string_lossy().into_owned(),
            is_folder: kind.is_dir() || kind.is_symlink() && entry.path().is_dir(),
        };
        // Other files are ignored whatever their names; only used files need UTF-8 names.
        match name.to_str() {
            Some(_) => entries.push(found),
            None if found.is_folder || found.is_image() => return Err(DataError::NotUnicode(entry.path())),
            None => {}
        }
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

fn canonical(folder: &Path) -> Result<PathBuf, DataError> {
    let unreadable = |source| DataError::UnreadableFolder(folder.to_path_buf(), source);
    folder.canonicalize().map_err(unreadable)
}

/// Adds the images below `folder` to `paths`, as `prefix/...` (or without a prefix), and counts other files
/// except a table of targets.
fn list_images(
    folder: &Path,
    prefix: &str,
    visited: &mut HashSet<PathBuf>,
    paths: &mut Vec<String>,
    ignored: &mut Ignored,
) -> Result<(), DataError> {
    if !visited.insert(canonical(folder)?) {
        return Ok(());
    }
    for entry in list(folder)? {
        let path = if prefix.is_empty() { entry.name.clone() } else { format!("{prefix}/{}", entry.name) };
        if entry.is_folder {
            list_images(&folder.join(&entry.name), &path, visited, paths, ignored)?;
        } else if entry.is_image() {
            paths.push(path);
        } else if path != TARGETS {
            ignored.count(&entry.name);
        }
    }
    Ok(())
}

/// Lists the images below a folder of `root`, sorted; `settings` are the keys that name the folder.
pub(super) fn image_files(
    root: &Path,
    folder: &Path,
    settings: &str,
    ignored: &mut Ignored,
) -> Result<Vec<String>, DataError> {
    list(folder).map_err(|error| folder_error(error, root, folder, settings))?;
    let mut paths = Vec::new();
    list_images(folder, "", &mut HashSet::new(), &mut paths, ignored)?;
    if paths.is_empty() {
        return Err(DataError::NoImages(folder.to_path_buf()));
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Turns an error of listing the split's folder into one that lists the existing folders.
fn folder_error(error: DataError, root: &Path, folder: &Path, settings: &str) -> DataError {
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

#[cfg(test)]
mod tests;
