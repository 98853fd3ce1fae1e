//! The list of images and their masks or maps under `root/<images>/` and `root/<masks>/`.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::check::{CheckReport, Depth, ImageList, Inspector, Needs, Target, inspect_all};
use super::class_counts::ClassCounts;
use super::dataset::Field;
use super::error::{DataError, Result};
use super::ignored::Ignored;
use super::image_folder::{SPLITS, image_files};
use super::mask_rule::{MaskRule, same_size};
use super::pixel_target::{MapRule, PixelRule};
use super::unicode_form;

/// Masks that a header check decodes of a larger set, to know their values. It takes seconds.
const COUNTED: usize = 2_000;

/// An image and its mask or map: their paths below the two folders, with `/` between names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair(
    /// Below the folder of images.
    pub String,
    /// Below the folder of masks.
    pub String,
);

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
    pub samples: Vec<Pair>,
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
        let mut samples = Vec::with_capacity(image_files.len());
        let (mut lonely_images, mut lonely_masks) = (Vec::new(), Vec::new());
        let mut rest = mask_files.into_iter().peekable();
        for (stem, image) in image_files {
            while let Some((_, mask)) = rest.next_if(|(other, _)| *other < stem) {
                lonely_masks.push(mask);
            }
            match rest.next_if(|(other, _)| *other == stem) {
                Some((_, mask)) => samples.push(Pair(image, mask)),
                None => lonely_images.push(image),
            }
        }
        lonely_masks.extend(rest.map(|(_, mask)| mask));
        if !lonely_images.is_empty() || !lonely_masks.is_empty() {
            let folders = [image_folder, mask_folder];
            let stems = |paths: &[String]| paths.iter().map(|path| stem(path)).collect::<Vec<_>>();
            let (images, masks) = (stems(&lonely_images), stems(&lonely_masks));
            let remedy = unicode_form::remedy(
                &folders[1],
                masks.iter().map(String::as_str),
                images.iter().map(String::as_str),
            );
            let remedy = remedy.map(String::into_boxed_str);
            return Err(DataError::Unpaired(folders, lonely_images, lonely_masks, remedy));
        }
        Ok(Self {
            root: root.to_path_buf(),
            images: images.to_owned(),
            masks: masks.to_owned(),
            rule,
            samples,
            size: None,
            ignored,
        })
    }

    /// Returns the path of one mask.
    pub fn mask_path(&self, index: usize) -> PathBuf {
        self.root.join(&self.masks).join(&self.samples[index].1)
    }

    /// Returns whether any check decodes this mask: up to [`COUNTED`] masks, evenly spread.
    fn is_counted(&self, sample: usize) -> bool {
        sample.is_multiple_of(self.count().div_ceil(COUNTED).max(1))
    }

    /// Returns the index without the samples that `report` found bad. More than 1% of them, and different
    /// sizes of images that are not resized, are errors.
    pub fn without_bad(&self, report: &CheckReport) -> Result<Self, DataError> {
        Ok(Self {
            samples: report.good(&self.samples)?,
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
        // A bad mask is reported when it is loaded, as in every set with a header check.
        let inspect = |sample, inspector: &mut Inspector| {
            if !self.is_counted(sample) && !is_enough.load(Ordering::Relaxed) {
                inspector.pixels(&self.mask_path(sample), self.rule.into(), Depth::Full)?;
                inspector.count(sample, self.rule.ignore);
                is_enough.fetch_or(inspector.class_counts.classes() >= wanted, Ordering::Relaxed);
            }
            Ok(None)
        };
        class_counts.add(&inspect_all(self.count(), inspect, threads, progress).class_counts);
        class_counts
    }
}

impl<R: PairRule> ImageList for PairIndex<R> {
    fn count(&self) -> usize {
        self.samples.len()
    }

    fn image_path(&self, sample: usize) -> PathBuf {
        self.root.join(&self.images).join(&self.samples[sample].0)
    }

    fn inspect(
        &self,
        sample: usize,
        needs: Needs,
        depth: Depth,
        inspector: &mut Inspector,
    ) -> Result<(u32, u32)> {
        let image_size = inspector.image(&self.image_path(sample), needs.channels, depth)?;
        let depth = if self.is_counted(sample) { Depth::Full } else { depth };
        let (path, rule) = self.pixels(sample);
        same_size(&path, inspector.pixels(&path, rule, depth)?, image_size)?;
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

/// Lists the images below a folder as (path without ending, path), sorted.
fn named(
    root: &Path,
    folder: &Path,
    settings: &str,
    ignored: &mut Ignored,
) -> Result<Vec<(String, String)>, DataError> {
    let paths = image_files(root, folder, settings, ignored)?;
    let mut named: Vec<_> = paths.into_iter().map(|path| (stem(&path), path)).collect();
    named.sort_unstable();
    if let Some(pair) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let (first, second) = (pair[0].1.clone(), pair[1].1.clone());
        return Err(DataError::SameName(folder.to_path_buf(), first, second));
    }
    Ok(named)
}

/// Returns a path without its ending.
fn stem(path: &str) -> String {
    path[..path.rfind('.').unwrap_or(path.len())].to_owned()
}

#[cfg(test)]
mod tests;
