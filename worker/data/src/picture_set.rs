//! What sets of image files have in common: reading, decoding, keeping, resizing, changing at random, normalising.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::augment::{Augment, Choice};
use super::cache::{Cache, CacheBudget};
use super::decode;
use super::error::SampleError;
use super::fit::{Fitter, Frame, Resize, fit_labels};
use super::mask_folder::MaskRule;
use super::normalize::{Normalize, write_labels};
use super::raster::{Labels, Raster, View};
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
    mask: Option<Labels>,
}

#[derive(Debug, Default)]
pub(super) struct Scratch {
    file: Vec<u8>,
    raw: Vec<u8>,
    image: Raster,
    mask: Labels,
    fitter: Fitter,
}

impl Scratch {
    fn held_bytes(&self) -> usize {
        let files = self.file.capacity() + self.raw.capacity();
        files + self.image.held_bytes() + self.mask.held_bytes() + self.fitter.held_bytes()
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
    ///
    /// # Panics
    /// If the normalisation is for another number of channels.
    pub(super) fn new(samples: usize, options: ImageOptions) -> Self {
        assert_eq!(
            options.normalize.channels(),
            options.channels,
            "a mean and a standard deviation for each channel"
        );
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
        out: &mut [f32],
        mask: Option<MaskJob<'_>>,
    ) -> Result<(), SampleError> {
        if let Some(kept) = self.cache.get(index) {
            return self.load_kept(kept, random, out, mask);
        }
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = idle().pop().unwrap_or_default();
        let result = self.load_file(&mut scratch, index, path, random, out, mask);
        if scratch.held_bytes() <= KEPT_BYTES {
            idle().push(scratch);
        }
        result
    }

    fn load_file(
        &self,
        scratch: &mut Scratch,
        index: usize,
        path: &Path,
        random: Option<&mut SampleRng>,
        out: &mut [f32],
        mask: Option<MaskJob<'_>>,
    ) -> Result<(), SampleError> {
        let Scratch {
            file,
            raw,
            image,
            mask: labels,
            fitter,
        } = scratch;
        regular::read(path, file)?;
        decode::pixels(file, self.options.channels, raw, image)?;
        let size = (image.width, image.height);
        if let Some(job) = &mask {
            let decoded = regular::read(job.path, file)
                .map_err(SampleError::from)
                .and_then(|()| decode::mask(file, raw, labels))
                .and_then(|()| job.rule.apply(labels));
            decoded.map_err(|source| SampleError::Mask {
                path: job.path.display().to_string(),
                source: Box::new(source),
            })?;
            same_size(job.path, (labels.width, labels.height), size)?;
        }
        if self.options.augment.needs_decoded() {
            // What is shown is not the same twice, so the whole image is what can be kept.
            let bytes = image.view().value_bytes() + mask.as_ref().map_or(0, |_| 2 * labels.values.len());
            self.cache.offer(index, bytes, || Kept {
                image: image.view().to_raster(),
                mask: mask.as_ref().map(|_| labels.clone()),
            });
            return self.finish_decoded(fitter, image, Some(&*labels), random, out, mask);
        }
        let frame = Frame::new(self.options.resize, size, self.options.size)?;
        let view = fitter.fit(image, frame)?;
        let fitted = mask.as_ref().map(|_| fit_labels(labels, frame));
        let bytes = view.value_bytes() + fitted.as_ref().map_or(0, |labels| 2 * labels.values.len());
        self.cache.offer(index, bytes, || Kept {
            image: view.to_raster(),
            mask: fitted.clone(),
        });
        self.finish_fitted(view, fitted.as_ref(), random, out, mask);
        Ok(())
    }

    fn load_kept(
        &self,
        kept: &Kept,
        random: Option<&mut SampleRng>,
        out: &mut [f32],
        mask: Option<MaskJob<'_>>,
    ) -> Result<(), SampleError> {
        let labels = kept.mask.as_ref();
        if !self.options.augment.needs_decoded() {
            self.finish_fitted(kept.image.view(), labels, random, out, mask);
            return Ok(());
        }
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = idle().pop().unwrap_or_default();
        let result = self.finish_decoded(&mut scratch.fitter, &kept.image, labels, random, out, mask);
        idle().push(scratch);
        result
    }

    /// From the decoded image to the end.
    fn finish_decoded(
        &self,
        fitter: &mut Fitter,
        image: &Raster,
        labels: Option<&Labels>,
        random: Option<&mut SampleRng>,
        out: &mut [f32],
        mask: Option<MaskJob<'_>>,
    ) -> Result<(), SampleError> {
        let ImageOptions {
            size,
            resize,
            augment,
            normalize,
            ..
        } = &self.options;
        let source = (image.width, image.height);
        // Without a random cut too, an image of a wrong size is an error.
        let plain = Frame::new(*resize, source, *size)?;
        let choice = random.map_or(Choice::default(), |rng| augment.draw(rng, source, *size));
        let frame = choice.frame.unwrap_or(plain);
        normalize.write(fitter.fit(image, frame)?, choice.placement, out);
        if let (Some(job), Some(labels)) = (mask, labels) {
            let fitted = fit_labels(labels, frame);
            let width = fitted.width as usize;
            write_labels(&fitted.values, width, choice.placement, job.rule.ignore, job.out);
        }
        Ok(())
    }

    /// From the resized image to the end.
    fn finish_fitted(
        &self,
        view: View<'_>,
        labels: Option<&Labels>,
        random: Option<&mut SampleRng>,
        out: &mut [f32],
        mask: Option<MaskJob<'_>>,
    ) {
        let ImageOptions {
            size,
            augment,
            normalize,
            ..
        } = &self.options;
        let choice = random.map_or(Choice::default(), |rng| augment.draw(rng, *size, *size));
        normalize.write(view, choice.placement, out);
        if let (Some(job), Some(labels)) = (mask, labels) {
            let width = labels.width as usize;
            write_labels(&labels.values, width, choice.placement, job.rule.ignore, job.out);
        }
    }
}

/// A mask must have a class for each pixel of its image.
pub(super) fn same_size(
    path: &Path,
    mask_size: (u32, u32),
    image_size: (u32, u32),
) -> Result<(), SampleError> {
    if mask_size == image_size {
        return Ok(());
    }
    Err(SampleError::MaskSize {
        mask: path.display().to_string(),
        mask_size,
        image_size,
    })
}
