//! Class folders: the images under `root/split/class/`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::super::error::DataError;
use super::super::ignored::{Ignored, is_image};
use super::super::packed::Packed;
use super::super::paths::Listing;
use super::super::samples::{Files, List, ListValues, Samples};
use super::listing::{SPLITS, canonical, folder_error, list, list_images};
use super::unicode_form;

/// Lists `root/split/<class>/**/*.png` and the like: the fields `image` and `label`.
///
/// Classes are the folders of the split, sorted by name; images are sorted by class and then by path, also those
/// nested deeper below a class. Hidden names (with a leading dot) are ignored. Files of other kinds, and files
/// beside the class folders, are counted. Links are followed, except to the split's folder and to those
/// above it: they hold the images of other classes. A folder that is reached twice within a class is
/// listed once.
///
/// For other splits, `classes` are the classes of the training split: they give the numbers. The other
/// split may lack some classes but must not have more.
pub fn scan(root: &Path, split: &str, classes: Option<&[String]>) -> Result<Samples, DataError> {
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
    let (mut empty, mut numbers) = (Vec::new(), Vec::new());
    let mut in_empty = Ignored::default();
    for (number, class) in (0u32..).zip(&classes) {
        let first = images.len();
        if names.binary_search(class).is_ok() {
            let mut others = Ignored::default();
            list_images(&folder.join(class), class, is_image, &mut above.clone(), &mut images, &mut others)?;
            if images.len() == first {
                empty.push(class.clone());
                in_empty.add(&others);
            }
            ignored.add(&others);
            images.sort(first);
        }
        numbers.resize(images.len(), number);
    }
    if !empty.is_empty() {
        return Err(DataError::EmptyClasses(folder, empty, Box::new(in_empty)));
    }
    let paths = images.pack()?;
    let numbers = Packed::write(numbers)?;
    let images = ListValues::Images(vec![Files::new(split, paths)]);
    let labels = ListValues::Classes { names: classes, numbers };
    Ok(Samples {
        root: root.to_path_buf(),
        set: split.to_owned(),
        table: None,
        sources: Vec::new(),
        lists: vec![List::new("image", images), List::new("label", labels)],
        size: None,
        ignored,
    })
}

#[cfg(test)]
mod tests;
