//! What sets of image files have in common: reading, decoding, keeping, resizing, changing at random, normalising.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::augment::{Augment, Choice};
use super::cache::{Cache, CacheBudget};
use super::decode;
use super::error::SampleError;
use super::fit::{Fitter, Frame, Resize, fit_labels};
use super::mask_rule::{MaskRule, same_size};
use super::normalize::Normalize;
use super::pixels::Pixels;
use super::raster::{Labels, Raster};
use super::regular;
use super::rng::SampleRng;

/// How the images of a set are prepared.
#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// Channels; 3 for RGB pictures, else the number that every file has.
    pub channels: usize,
    /// Width and height of every image after resizing, in pixels; at least 1.
    pub size: (u32, u32),
    /// How images get that size.
    pub resize: Resize,
    /// What is done last; for as many channels.
    pub normalize: Normalize,
    /// Random changes, made where a sample is loaded with a generator.
    pub augment: Augment,
    /// The memory for decoded images.
    pub cache: CacheBudget,
}

impl ImageOptions {
    /// RGB pictures as squares of `side` pixels, cut from the middle, normalised as torchvision's weights expect, without
    /// random changes or cache.
    pub fn square(side: u32) -> Self {
        Self {
            channels: 3,
            size: (side, side),
            resize: Resize::Crop,
            normalize: Normalize::default(),
            augment: Augment::None,
            cache: CacheBudget::default(),
        }
    }

    /// The shape of one image: channels, height, width.
    pub(super) fn shape(&self) -> [usize; 3] {
        [self.channels, self.size.1 as usize, self.size.0 as usize]
    }
}

/// Working memory kept for the next image up to this size; one huge image must not hold on to its memory.
const KEPT_BYTES: usize = 64 << 20;

/// Loads images, and masks with them.
#[derive(Debug)]
pub(super) struct Pictures {
    pub(super) options: ImageOptions,
    /// Decoded images as they are before anything random: resized, or as in the file where that comes after a random cut.
    cache: Cache<Kept>,
    /// Working memory of the threads that are not loading at the moment; as many as ever loaded at once.
    pub(super) idle: Mutex<Vec<Scratch>>,
}

#[derive(Debug)]
struct Kept {
    image: Raster,
    /// Empty where there are no masks.
    labels: Labels,
}

#[derive(Debug, Default)]
pub(super) struct Scratch {
    file: Vec<u8>,
    raw: Vec<u8>,
    image: Raster,
    labels: Labels,
    fitter: Fitter,
}

impl Scratch {
    fn held_bytes(&self) -> usize {
        let files = self.file.capacity() + self.raw.capacity();
        files + self.image.held_bytes() + self.labels.held_bytes() + self.fitter.held_bytes()
    }

    /// Reads an image and its mask.
    fn decode(
        &mut self,
        path: &Path,
        channels: usize,
        mask: Option<&MaskJob<'_>>,
    ) -> Result<(), SampleError> {
        let Self {
            file,
            raw,
            image,
            labels,
            ..
        } = self;
        regular::read(path, file)?;
        decode::pixels(file, channels, raw, image)?;
        let Some(job) = mask else { return Ok(()) };
        let decoded = regular::read(job.path, file)
            .map_err(SampleError::from)
            .and_then(|()| decode::mask(file, raw, labels))
            .and_then(|()| job.rule.apply(labels));
        decoded.map_err(|source| SampleError::Mask {
            path: job.path.display().to_string(),
            source: Box::new(source),
        })?;
        same_size(
            job.path,
            (labels.width, labels.height),
            (image.width, image.height),
        )
    }
}

/// A mask to be loaded with its image.
pub(super) struct MaskJob<'a> {
    pub(super) path: &'a Path,
    pub(super) rule: MaskRule,
    /// One class for each pixel.
    pub(super) out: &'a mut [i64],
}

impl Pictures {
    /// For `samples` images.
    pub(super) fn new(samples: usize, options: ImageOptions) -> Self {
        Self {
            cache: Cache::new(samples, options.cache.clone()),
            options,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// Loads sample `index` from its file, or from memory.
    pub(super) fn load(
        &self,
        index: usize,
        path: &Path,
        random: Option<&mut SampleRng>,
        out: &mut Pixels,
        mask: Option<MaskJob<'_>>,
    ) -> Result<(), SampleError> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = idle().pop().unwrap_or_default();
        let result = self.load_in(&mut scratch, index, path, random, out, mask);
        if scratch.held_bytes() <= KEPT_BYTES {
            idle().push(scratch);
        }
        result
    }

    fn load_in(
        &self,
        scratch: &mut Scratch,
        index: usize,
        path: &Path,
        random: Option<&mut SampleRng>,
        out: &mut Pixels,
        mask: Option<MaskJob<'_>>,
    ) -> Result<(), SampleError> {
        let kept = self.cache.get(index);
        if kept.is_none() {
            scratch.decode(path, self.options.channels, mask.as_ref())?;
        }
        let (image, labels) = match kept {
            Some(Kept { image, labels }) => (image, labels),
            None => (&scratch.image, &scratch.labels),
        };
        let target = self.options.size;
        let augment = self.options.augment;
        let source = (image.width, image.height);
        // Also where a random cut takes its place: an image of a wrong size is an error.
        let plain = Frame::new(self.options.resize, source, target)?;
        let whole = augment.needs_decoded();
        let choice = random.map_or(Choice::default(), |rng| {
            augment.draw(rng, if whole { source } else { target }, target)
        });
        let frame = choice.frame.unwrap_or(plain);
        let view = scratch.fitter.fit(image, frame)?;
        let fitted = mask.as_ref().map(|_| fit_labels(labels, frame));
        if kept.is_none() {
            // With a random cut what is shown is not the same twice, so that the whole image is kept.
            let (view, labels) = match whole {
                true => (image.view(), mask.as_ref().map(|_| labels)),
                false => (view, fitted.as_ref()),
            };
            let bytes = view.value_bytes() + labels.map_or(0, |labels| 2 * labels.values.len());
            self.cache.offer(index, bytes, || Kept {
                image: view.to_raster(),
                labels: labels.cloned().unwrap_or_default(),
            });
        }
        out.write(view, choice.placement);
        if let (Some(job), Some(fitted)) = (mask, fitted) {
            fitted.write(choice.placement, job.rule.ignore, job.out);
        }
        Ok(())
    }
}
