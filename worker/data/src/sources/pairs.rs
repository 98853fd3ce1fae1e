//! Images and their masks or maps under `root/<images>/` and `root/<masks>/`.

use std::cmp::Ordering;
use std::path::Path;

use super::super::error::DataError;
use super::super::ignored::Ignored;
use super::super::paths::Listing;
use super::super::pixel_target::PixelRule;
use super::super::samples::{Files, List, ListValues, Samples};
use super::listing::{SPLITS, image_files};
use super::unicode_form;

/// Lists the images below both folders and pairs those with the same path except for the ending: the fields
/// `image` and `mask` or `map`, in the order of the images' names. Ignores hidden names and counts files of other
/// kinds.
pub fn scan(root: &Path, images: &str, masks: &str, rule: PixelRule) -> Result<Samples, DataError> {
    let (image_folder, mask_folder) = (root.join(images), root.join(masks));
    let mut ignored = Ignored::default();
    let image_files = named(root, &image_folder, SPLITS, &mut ignored)?;
    let settings = "data.root, data.train_masks and data.test_masks";
    let mask_files = named(root, &mask_folder, settings, &mut ignored)?;
    let (mut lonely_images, mut lonely_masks) = (Vec::new(), Vec::new());
    let (mut image, mut mask) = (0, 0);
    while image < image_files.len() || mask < mask_files.len() {
        let order = match (image < image_files.len(), mask < mask_files.len()) {
            (true, true) => image_files.compare_stems(image, &mask_files, mask),
            (true, false) => Ordering::Less,
            _ => Ordering::Greater,
        };
        match order {
            Ordering::Less => lonely_images.push(image_files.path(image)),
            Ordering::Greater => lonely_masks.push(mask_files.path(mask)),
            Ordering::Equal => {}
        }
        image += usize::from(order != Ordering::Greater);
        mask += usize::from(order != Ordering::Less);
    }
    if !lonely_images.is_empty() || !lonely_masks.is_empty() {
        let folders = Box::new([image_folder, mask_folder]);
        let stems = |paths: &[String]| paths.iter().map(|path| stem(path)).collect::<Vec<_>>();
        let remedy = unicode_form::remedy(&folders[1], &stems(&lonely_masks), &stems(&lonely_images));
        let notes = Box::new((ignored, remedy));
        return Err(DataError::Unpaired(folders, lonely_images, lonely_masks, notes));
    }
    let files = |folder: &str, files: Listing| {
        Ok::<_, DataError>(Files { folder: folder.to_owned(), paths: files.pack()? })
    };
    let field = match rule {
        PixelRule::Mask(_) => "mask",
        PixelRule::Map(_) => "map",
    };
    let masks = ListValues::Pixels(files(masks, mask_files)?, rule);
    let lists = vec![
        List::new("image", ListValues::Images(vec![files(images, image_files)?])),
        List::new(field, masks),
    ];
    Ok(Samples {
        root: root.to_path_buf(),
        set: images.to_owned(),
        table: None,
        sources: Vec::new(),
        lists,
        size: None,
        ignored,
    })
}

/// Lists the images below a folder, sorted by their paths without endings, which must differ.
fn named(root: &Path, folder: &Path, settings: &str, ignored: &mut Ignored) -> Result<Listing, DataError> {
    let mut files = image_files(root, folder, settings, ignored)?;
    files.sort_by_stem();
    let same = |at: &usize| files.compare_stems(at - 1, &files, *at) == Ordering::Equal;
    match (1..files.len()).find(same) {
        None => Ok(files),
        Some(at) => Err(DataError::SameName(folder.to_path_buf(), files.path(at - 1), files.path(at))),
    }
}

/// Returns a path without its ending.
fn stem(path: &str) -> String {
    path[..path.rfind('.').unwrap_or(path.len())].to_owned()
}

#[cfg(test)]
mod tests;
