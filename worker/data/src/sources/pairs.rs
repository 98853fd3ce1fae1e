//! Images and their masks or maps under `root/<images>/` and `root/<masks>/`.

use std::cmp::Ordering;
use std::path::Path;

use dtrain_recipe::Pair;

use super::super::error::DataError;
use super::super::ignored::{Ignored, is_image, is_mask};
use super::super::paths::Listing;
use super::super::pixel_target::PixelRule;
use super::super::samples::{Files, List, ListValues, Samples};
use super::listing::{SPLITS, image_files};
use super::pair_names::{self, Unpaired};
use super::unicode_form;

/// Lists the images below both folders and pairs those with the same path except for the ending, or by `pair`: the fields
/// `image` and `mask` or `map`, in the order of the images' names. Ignores hidden names and counts files of other
/// kinds.
pub fn scan(
    root: &Path,
    images: &str,
    masks: &str,
    rule: PixelRule,
    pair: Option<&Pair>,
) -> Result<Samples, DataError> {
    let (image_folder, mask_folder) = (root.join(images), root.join(masks));
    let mut ignored = Ignored::default();
    let image_files = image_files(root, &image_folder, SPLITS, is_image, &mut ignored)?;
    let settings = "data.root, data.train_masks and data.test_masks";
    let mask_files = self::image_files(root, &mask_folder, settings, is_mask, &mut ignored)?;
    let listed = [image_files, mask_files];
    let folders = [image_folder.as_path(), mask_folder.as_path()];
    let paired = match pair {
        Some(pair) => pair_names::pair_up(pair, folders, listed, &mut ignored)?,
        None => by_name(folders, listed)?,
    };
    let [image_files, mask_files] = match paired {
        Ok(files) => files,
        Err(Unpaired { images, masks, remedy }) => {
            let folders = Box::new([image_folder, mask_folder]);
            return Err(DataError::Unpaired(folders, images, masks, Box::new((ignored, remedy))));
        }
    };
    let files = |folder: &str, files: Listing| Ok::<_, DataError>(Files::new(folder, files.pack()?));
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

/// Pairs files of the same path except for the ending.
fn by_name(
    folders: [&Path; 2],
    [images, masks]: [Listing; 2],
) -> Result<Result<[Listing; 2], Unpaired>, DataError> {
    let (image_files, mask_files) = (named(folders[0], images)?, named(folders[1], masks)?);
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
    if lonely_images.is_empty() && lonely_masks.is_empty() {
        return Ok(Ok([image_files, mask_files]));
    }
    let stems = |paths: &[String]| paths.iter().map(|path| stem(path)).collect::<Vec<_>>();
    let remedy = unicode_form::remedy(folders[1], &stems(&lonely_masks), &stems(&lonely_images));
    Ok(Err(Unpaired { images: lonely_images, masks: lonely_masks, remedy }))
}

/// Sorts files by their paths without endings, which must differ.
fn named(folder: &Path, mut files: Listing) -> Result<Listing, DataError> {
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
