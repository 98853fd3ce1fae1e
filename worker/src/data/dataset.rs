//! What the loader needs to know of a data set, and image folders as one.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::decode;
use super::error::SampleError;
use super::fit::{Fitter, Normalize};
use super::image_folder::ImageIndex;
use super::rng::{SampleRng, coin};

/// A set of labelled square RGB images. Called from several threads at once.
pub trait Dataset: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> usize;

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many classes there are; labels are below it.
    fn classes(&self) -> usize;

    /// Height and width of the images, in pixels.
    fn image_size(&self) -> usize;

    /// The class of a sample, known without loading it.
    ///
    /// # Panics
    /// If `index` is not below [`Dataset::len`].
    fn label(&self, index: usize) -> u32;

    /// Writes one normalised image into `out`: three planes of `image_size * image_size` values. With `augment`, its
    /// random choices are drawn from that generator and from nothing else.
    ///
    /// # Errors
    /// The image cannot be read or decoded. `out` then holds nothing of use.
    ///
    /// # Panics
    /// If `index` is not below [`Dataset::len`] or `out` is not of that length.
    fn load(&self, index: usize, augment: Option<&mut SampleRng>, out: &mut [f32])
    -> Result<(), SampleError>;

    /// Which sample this is, for messages: its path, say.
    fn describe(&self, index: usize) -> String;
}

/// Working memory kept for the next image up to this size; one huge image must not hold on to its memory.
const KEPT_BYTES: usize = 64 << 20;

/// Images in class folders. The augmentation is a horizontal flip with probability one half.
#[derive(Debug)]
pub struct ImageFolder {
    index: ImageIndex,
    image_size: usize,
    normalize: Normalize,
    /// Working memory of the threads that are not loading at the moment; as many as ever loaded at once.
    idle: Mutex<Vec<Scratch>>,
}

#[derive(Debug, Default)]
struct Scratch {
    file: Vec<u8>,
    raw: Vec<u8>,
    rgb: Vec<u8>,
    fitter: Fitter,
}

impl Scratch {
    fn held_bytes(&self) -> usize {
        self.file.capacity() + self.raw.capacity() + self.rgb.capacity() + self.fitter.held_bytes()
    }
}

impl ImageFolder {
    /// The images of `index`, each brought to `image_size` (at least 1) and normalised.
    pub fn new(index: ImageIndex, image_size: usize, normalize: Normalize) -> Self {
        Self {
            index,
            image_size,
            normalize,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// The list of images.
    pub fn index(&self) -> &ImageIndex {
        &self.index
    }

    fn load_with(
        &self,
        scratch: &mut Scratch,
        path: &Path,
        augment: Option<&mut SampleRng>,
        out: &mut [f32],
    ) -> Result<(), SampleError> {
        scratch.file.clear();
        File::open(path)?.read_to_end(&mut scratch.file)?;
        let size = decode::rgb8(&scratch.file, &mut scratch.raw, &mut scratch.rgb)?;
        let window = scratch.fitter.fit(&scratch.rgb, size, self.image_size)?;
        let flip = augment.is_some_and(coin);
        self.normalize.write(window, self.image_size, flip, out);
        Ok(())
    }
}

impl Dataset for ImageFolder {
    fn len(&self) -> usize {
        self.index.len()
    }

    fn classes(&self) -> usize {
        self.index.classes.len()
    }

    fn image_size(&self) -> usize {
        self.image_size
    }

    fn label(&self, index: usize) -> u32 {
        self.index.samples[index].0
    }

    fn load(
        &self,
        index: usize,
        augment: Option<&mut SampleRng>,
        out: &mut [f32],
    ) -> Result<(), SampleError> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = idle().pop().unwrap_or_default();
        let result = self.load_with(&mut scratch, &self.index.path(index), augment, out);
        if scratch.held_bytes() <= KEPT_BYTES {
            idle().push(scratch);
        }
        result
    }

    fn describe(&self, index: usize) -> String {
        self.index.path(index).display().to_string()
    }
}

#[cfg(test)]
mod tests;
