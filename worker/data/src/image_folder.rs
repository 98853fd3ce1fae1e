//! The list of images under `root/split/class/`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::check::{CheckReport, ImageList, Target};
use super::dataset::Field;
use super::error::{DataError, Result, listed};
use super::ignored::{Ignored, is_image};
use super::paths::{Listing, Paths};
use super::target_table::TARGETS;
use super::unicode_form;

/// The classes and images of one split, in an order that depends on names alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageIndex {
    pub root: PathBuf,
    /// The split's folder below the root, such as `train`.
    pub split: String,
    /// Class names; a class's number is its index here.
    pub classes: Vec<String>,
    /// The images, sorted by class and then by path, below the split's folder.
    pub images: Paths,
    /// The number of images of each class and all classes before it.
    pub class_ends: Vec<usize>,
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
            let mut ignored = Ignored::default();
            entries.iter().filter(|entry| !entry.is_image()).for_each(|entry| ignored.count(&entry.name));
            return Err(DataError::NoClasses(folder, loose_images, Box::new(ignored)));
        }
        let classes = classes.map_or_else(|| names.clone(), <[String]>::to_vec);
        let known: HashSet<&String> = classes.iter().collect();
        let unknown: Vec<String> = names.iter().filter(|name| !known.contains(name)).cloned().collect();
        if !unknown.is_empty() {
            // Classes that this split lacks are no error, unless they are these.
            let lacking = classes.iter().filter(|class| names.binary_search(class).is_err());
            let remedy = unicode_form::remedy(&folder, &unknown, lacking);
            return Err(DataError::UnknownClasses(folder, unknown, remedy));
        }
        let above: HashSet<PathBuf> = canonical(&folder)?.ancestors().map(Path::to_path_buf).collect();
        let (mut images, mut ignored) = (Listing::default(), Ignored::default());
        entries.iter().filter(|entry| !entry.is_folder).for_each(|entry| ignored.count(&entry.name));
        let (mut empty, mut class_ends) = (Vec::new(), Vec::with_capacity(classes.len()));
        let mut in_empty = Ignored::default();
        for class in &classes {
            let first = images.len();
            if names.binary_search(class).is_ok() {
                let mut others = Ignored::default();
                list_images(&folder.join(class), class, &mut above.clone(), &mut images, &mut others)?;
                if images.len() == first {
                    empty.push(class.clone());
                    in_empty.add(&others);
                }
                ignored.add(&others);
                images.sort(first);
            }
            class_ends.push(images.len());
        }
        if !empty.is_empty() {
            return Err(DataError::EmptyClasses(folder, empty, Box::new(in_empty)));
        }
        Ok(Self {
            root: root.to_path_buf(),
            split: split.to_owned(),
            classes,
            images: images.pack()?,
            class_ends,
            size: None,
            ignored,
        })
    }

    /// Returns the number of an image's class.
    pub fn class_of(&self, image: usize) -> usize {
        self.class_ends.partition_point(|&end| end <= image)
    }

    /// Returns the index without the samples that `report` found bad. Errors: more than 1% bad samples, a
    /// class without good samples, and different sizes of images that are not resized.
    pub fn without_bad(&self, report: &CheckReport) -> Result<Self, DataError> {
        let is_good = report.good(self.count())?;
        let kept = self.kept(is_good)?;
        let images = |index: &Self, class: usize| {
            index.class_ends[class] - if class == 0 { 0 } else { index.class_ends[class - 1] }
        };
        let is_lost = |&class: &usize| images(self, class) > 0 && images(&kept, class) == 0;
        if let Some(lost) = (0..self.classes.len()).find(is_lost) {
            let of_class =
                report.bad.iter().filter(|bad| self.class_of(bad.index) == lost).cloned().collect();
            return Err(DataError::ClassLost(self.classes[lost].clone(), of_class));
        }
        Ok(Self { size: report.common_size(self, self.size)?, ..kept })
    }

    /// Returns the index of the images for which `is_kept`.
    pub(super) fn kept(&self, is_kept: impl Fn(usize) -> bool) -> Result<Self, DataError> {
        let mut counted = 0;
        let mut kept = 0;
        let mut up_to = |end: usize| {
            kept += (counted..end).filter(|&image| is_kept(image)).count();
            counted = counted.max(end);
            kept
        };
        let class_ends = self.class_ends.iter().map(|&end| up_to(end)).collect();
        let images = self.images.kept(is_kept)?;
        Ok(Self { images, class_ends, ..self.clone() })
    }
}

impl ImageList for ImageIndex {
    fn count(&self) -> usize {
        self.images.len()
    }

    fn image_path(&self, sample: usize) -> PathBuf {
        self.images.below(&self.root.join(&self.split), sample)
    }

    fn target(&self, sample: usize) -> Target<'_> {
        Target::Label(self.class_of(sample) as u32)
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
        !self.is_folder && is_image(&self.name)
    }
}

/// Lists the visible entries of a folder by name. A broken link counts as a file, which is then bad.
fn list(folder: &Path) -> Result<Vec<Entry>, DataError> {
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

fn canonical(folder: &Path) -> Result<PathBuf, DataError> {
    let unreadable = |source| DataError::UnreadableFolder(folder.to_path_buf(), source);
    folder.canonicalize().map_err(unreadable)
}

/// Adds the images below `folder` to `images`, as `prefix/...` (or without a prefix), and counts other files
/// except a table of targets.
fn list_images(
    folder: &Path,
    prefix: &str,
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
        } else if entry.is_image() {
            images.add(&entry.name);
        } else if !(prefix.is_empty() && entry.name == TARGETS) {
            ignored.count(&entry.name);
        }
    }
    folders.sort_unstable();
    for name in folders {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        list_images(&folder.join(&name), &path, visited, images, ignored)?;
    }
    Ok(())
}

/// Lists the images below a folder of `root`, in any order; `settings` are the keys that name the folder.
pub(super) fn image_files(
    root: &Path,
    folder: &Path,
    settings: &str,
    ignored: &mut Ignored,
) -> Result<Listing, DataError> {
    drop(entries(folder).map_err(|error| folder_error(error, root, folder, settings))?);
    let (mut images, mut others) = (Listing::default(), Ignored::default());
    list_images(folder, "", &mut HashSet::new(), &mut images, &mut others)?;
    if images.len() == 0 {
        return Err(DataError::NoImages(folder.to_path_buf(), Box::new(others)));
    }
    ignored.add(&others);
    Ok(images)
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
