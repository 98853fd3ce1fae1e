//! Image files as a data set, with classes or numbers for each image or for each pixel.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dtrain_recipe::{Augment, Orientation, Resize};

use super::augment::{Choice, draw, needs_decoded};
use super::cache::{Cache, CacheBudget};
use super::check::{ImageList, Target};
use super::dataset::{Column, Dataset, Field};
use super::error::Result;
use super::fit::{Fitter, Frame};
use super::image_folder::ImageIndex;
use super::inspector::{Inspector, KEPT_BYTES};
use super::mask_folder::{MapIndex, MaskIndex};
use super::mask_rule::same_size;
use super::needs::{Depth, Needs};
use super::normalize::Normalize;
use super::pixel_target::PixelTarget;
use super::pixels::Pixels;
use super::raster::Raster;
use super::rng::SampleRng;
use super::target_folder::TargetIndex;

/// Images in class folders: the fields `image`, `[C, H, W]`, and `label`, a single number.
pub type ImageFolder = PictureSet<ImageIndex>;

/// Images and masks from two folders: the fields `image`, `[C, H, W]`, and `mask`, `[H, W]`.
///
/// A mask changes like its image: the same resizing, by the nearest pixel, and the same random choices.
/// Pixels that a random shift brings in from outside of the image are [`super::MaskRule::ignore`].
pub type ImageMasks = PictureSet<MaskIndex>;

/// Images and maps from two folders: the fields `image`, `[C, H, W]`, and `map`, `[H, W]`. A map changes like
/// a mask; pixels without a number, also those from outside of the image, are NaN.
pub type ImageMaps = PictureSet<MapIndex>;

/// Images and the numbers of a table: the fields `image`, `[C, H, W]`, and `targets`, `[names]`. Random
/// changes of an image leave its numbers as they are.
pub type ImageVectors = PictureSet<TargetIndex>;

/// Preparation of the images of a set.
#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// Channels; 3 for RGB pictures, else the number that every file has.
    pub channels: usize,
    /// Width and height of every image after resizing, in pixels; at least 1.
    pub size: (u32, u32),
    pub resize: Resize,
    /// Whether images, masks and maps are turned, each as its own EXIF data states.
    pub orientation: Orientation,
    /// The last step; it must have as many channels.
    pub normalize: Normalize,
    /// Random changes, applied if a sample is loaded with a generator.
    pub augment: Augment,
    pub cache: CacheBudget,
}

impl ImageOptions {
    /// Returns RGB squares of `side` pixels, as torchvision's weights expect, without changes and cache.
    pub fn square(side: u32) -> Self {
        Self {
            channels: 3,
            size: (side, side),
            resize: Resize::Crop,
            orientation: Orientation::Stored,
            normalize: Normalize::default(),
            augment: Augment::None,
            cache: CacheBudget::default(),
        }
    }
}

/// The images of a list, prepared alike.
#[derive(Debug)]
pub struct PictureSet<L> {
    list: L,
    options: ImageOptions,
    fields: [Field; 2],
    /// Decoded images before random changes: resized, or original if a random crop comes before resizing.
    cache: Cache<CachedSample>,
    /// Working memory of idle threads; as many as the most threads that loaded at once.
    idle: Mutex<Vec<Scratch>>,
}

#[derive(Debug)]
struct CachedSample {
    image: Raster,
    target: PixelTarget,
}

#[derive(Debug, Default)]
struct Scratch {
    decoded: Inspector,
    fitter: Fitter,
}

impl<L: ImageList> PictureSet<L> {
    /// Makes the set of `list`. Panics if the normalisation has another number of channels.
    pub fn new(list: L, options: ImageOptions) -> Self {
        let (channels, width, height) = (options.channels, options.size.0 as usize, options.size.1 as usize);
        assert_eq!(
            options.normalize.channels(),
            channels,
            "a mean and a standard deviation for each channel"
        );
        let image = Field::image("image", [channels, height, width], options.normalize.clone());
        Self {
            fields: [image, list.target_field(height, width)],
            cache: Cache::new(list.count(), options.cache.clone()),
            options,
            idle: Mutex::default(),
            list,
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Scratch>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_in(
        &self,
        scratch: &mut Scratch,
        index: usize,
        random: Option<&mut SampleRng>,
        out: &mut Pixels,
        target_out: &mut Column,
    ) -> Result<()> {
        let target = self.list.target(index);
        let mask = match &target {
            Target::Label(class) => {
                target_out.i64()[0] = i64::from(*class);
                None
            }
            Target::Vector(numbers) => {
                target_out.f32().copy_from_slice(numbers);
                None
            }
            Target::Pixels(path, rule) => Some((path.as_path(), *rule)),
        };
        let kept = self.cache.get(index);
        if kept.is_none() {
            let path = self.list.image_path(index);
            let ImageOptions { channels, resize, orientation, .. } = self.options;
            let needs = Needs { channels, resize, orientation };
            let image_size = scratch.decoded.image(&path, needs, Depth::Full)?;
            if let Some((path, rule)) = mask {
                let size = scratch.decoded.pixels(path, rule, orientation, Depth::Full)?;
                same_size(path, size, image_size)?;
            }
        }
        let (image, pixels) = match kept {
            Some(CachedSample { image, target }) => (image, target),
            None => (&scratch.decoded.image, &scratch.decoded.target),
        };
        let (target, augment) = (self.options.size, self.options.augment);
        let source = (image.width, image.height);
        // Also with a random crop instead: an image of a wrong size is an error.
        let plain = Frame::new(self.options.resize, source, target)?;
        let whole = needs_decoded(augment);
        let choice = random
            .map_or(Choice::default(), |rng| draw(augment, rng, if whole { source } else { target }, target));
        let frame = choice.frame.unwrap_or(plain);
        let view = scratch.fitter.fit(image, frame)?;
        let fitted = mask.map(|_| pixels.fit(frame));
        if kept.is_none() {
            // A random crop shows another part each time, so the whole image is kept.
            let (view, pixels) = match whole {
                true => (image.view(), mask.map(|_| pixels)),
                false => (view, fitted.as_ref()),
            };
            let bytes = view.value_bytes() + pixels.map_or(0, PixelTarget::value_bytes);
            self.cache.insert_with(index, bytes, || CachedSample {
                image: view.to_raster(),
                target: pixels.cloned().unwrap_or_default(),
            });
        }
        out.write(view, choice.placement);
        if let (Some((_, rule)), Some(fitted)) = (mask, fitted) {
            fitted.write(choice.placement, rule.outside(), target_out);
        }
        Ok(())
    }
}

impl<L: ImageList> Dataset for PictureSet<L> {
    fn len(&self) -> usize {
        self.list.count()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let [image, target] = out else {
            panic!("a set of images has two fields, not {}", out.len());
        };
        let mut scratch = self.idle().pop().unwrap_or_default();
        let loaded = self.load_in(&mut scratch, index, random, image.pixels(), target);
        if scratch.decoded.held_bytes() + scratch.fitter.held_bytes() <= KEPT_BYTES {
            self.idle().push(scratch);
        }
        loaded
    }

    fn describe(&self, index: usize) -> String {
        self.list.image_path(index).display().to_string()
    }
}

#[cfg(test)]
mod tests;
