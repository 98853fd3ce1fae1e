//! The list of images and their masks or maps under `root/<images>/` and `root/<masks>/`.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use dtrain_recipe::Orientation;
use serde::{Deserialize, Serialize};

use super::check::{CheckReport, ImageList, Target, inspect_all};
use super::class_counts::ClassCounts;
use super::dataset::Field;
use super::error::{DataError, Result};
use super::ignored::Ignored;
use super::image_folder::{SPLITS, image_files};
use super::inspector::Inspector;
use super::mask_rule::{MaskRule, same_size};
use super::needs::{Depth, Needs};
use super::paths::{Listing, Paths};
use super::pixel_target::{MapRule, PixelRule};
use super::unicode_form;

/// Masks that a header check decodes of a larger set, to know their values. It takes seconds.
const COUNTED: usize = 2_000;

/// Images and masks.
pub type MaskIndex = PairIndex<MaskRule>;

/// Images and maps.
pub type MapIndex = PairIndex<MapRule>;

/// The rule to read the second image of a pair.
pub trait PairRule: Copy + Send + Sync + Into<PixelRule> {
    /// Returns the field for images of this size in pixels.
    fn field(height: usize, width: usize) -> Field;
}

impl PairRule for MaskRule {
    fn field(height: usize, width: usize) -> Field {
        Field::i64("mask", [height, width])
    }
}

impl PairRule for MapRule {
    fn field(height: usize, width: usize) -> Field {
        Field::f32("map", [height, width])
    }
}

/// The images of one split and their masks or maps, in the order of the images' names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairIndex<R> {
    pub root: PathBuf,
    /// The images' folder below the root.
    pub images: String,
    /// The masks' folder below the root.
    pub masks: String,
    pub rule: R,
    /// The images, below their folder.
    pub image_paths: Paths,
    /// The masks of the images, below their folder.
    pub mask_paths: Paths,
    /// Width and height of all images if they are not resized: the required size, or the size found.
    #[serde(default)]
    pub size: Option<(u32, u32)>,
    /// Unused files below both folders; known only after a scan.
    #[serde(skip)]
    pub ignored: Ignored,
}

impl<R: PairRule> PairIndex<R> {
    /// Lists the images below both folders and pairs those with the same path except for the ending. Ignores
    /// hidden names and counts files of other kinds.
    pub fn scan(root: &Path, images: &str, masks: &str, rule: R) -> Result<Self, DataError> {
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
        Ok(Self {
            root: root.to_path_buf(),
            images: images.to_owned(),
            masks: masks.to_owned(),
            rule,
            image_paths: image_files.pack()?,
            mask_paths: mask_files.pack()?,
            size: None,
            ignored,
        })
    }

    /// Returns the path of one mask.
    pub fn mask_path(&self, index: usize) -> PathBuf {
        self.mask_paths.below(&self.root.join(&self.masks), index)
    }

    /// Returns whether any check decodes this mask: up to [`COUNTED`] masks, evenly spread.
    fn is_counted(&self, sample: usize) -> bool {
        sample.is_multiple_of(self.count().div_ceil(COUNTED).max(1))
    }

    /// Returns the index without the samples that `report` found bad. More than 1% of them, and different
    /// sizes of images that are not resized, are errors.
    pub fn without_bad(&self, report: &CheckReport) -> Result<Self, DataError> {
        let is_good = report.good(self.count())?;
        Ok(Self {
            image_paths: self.image_paths.kept(&is_good)?,
            mask_paths: self.mask_paths.kept(&is_good)?,
            size: report.common_size(self, self.size)?,
            ..self.clone()
        })
    }

    /// Returns the rule for a sample's second image and its path.
    fn pixels(&self, sample: usize) -> (PathBuf, PixelRule) {
        (self.mask_path(sample), self.rule.into())
    }
}

impl MaskIndex {
    /// Returns the classes in the masks. If the check decoded only some masks and found fewer than `wanted`
    /// classes, decodes the others until it has found that many: a class may be rare.
    pub fn class_counts(
        &self,
        report: &CheckReport,
        wanted: usize,
        threads: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> ClassCounts {
        let mut class_counts = report.class_counts.clone();
        if class_counts.classes() >= wanted || class_counts.masks + report.bad.len() >= self.count() {
            return class_counts;
        }
        let is_enough = AtomicBool::new(false);
        // A bad mask is reported when it is loaded, as in every set with a header check. Turning a mask changes
        // no count.
        let inspect = |sample, inspector: &mut Inspector| {
            if !self.is_counted(sample) && !is_enough.load(Relaxed) {
                inspector.pixels(
                    &self.mask_path(sample),
                    self.rule.into(),
                    Orientation::Stored,
                    Depth::Full,
                )?;
                inspector.count(sample, self.rule.ignore);
                is_enough.fetch_or(inspector.class_counts.classes() >= wanted, Relaxed);
            }
            Ok(None)
        };
        class_counts.add(&inspect_all(self.count(), inspect, threads, progress).class_counts);
        class_counts
    }
}

impl<R: PairRule> ImageList for PairIndex<R> {
    fn count(&self) -> usize {
        self.image_paths.len()
    }

    fn image_path(&self, sample: usize) -> PathBuf {
        self.image_paths.below(&self.root.join(&self.images), sample)
    }

    fn inspect(
        &self,
        sample: usize,
        needs: Needs,
        depth: Depth,
        inspector: &mut Inspector,
    ) -> Result<(u32, u32)> {
        let image_size = inspector.image(&self.image_path(sample), needs, depth)?;
        let depth = if self.is_counted(sample) { Depth::Full } else { depth };
        let (path, rule) = self.pixels(sample);
        same_size(&path, inspector.pixels(&path, rule, needs.orientation, depth)?, image_size)?;
        if depth == Depth::Full {
            inspector.count(sample, rule.outside());
        }
        Ok(image_size)
    }

    fn target(&self, sample: usize) -> Target<'_> {
        let (path, rule) = self.pixels(sample);
        Target::Pixels(path, rule)
    }

    fn target_field(&self, height: usize, width: usize) -> Field {
        R::field(height, width)
    }
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
