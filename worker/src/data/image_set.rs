//! Image folders as a data set.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::dataset::{Dataset, Field, Slot};
use super::decode;
use super::error::SampleError;
use super::fit::{Fitter, Normalize};
use super::image_folder::ImageIndex;
use super::rng::{SampleRng, coin};

/// Working memory kept for the next image up to this size; one huge image must not hold on to its memory.
const KEPT_BYTES: usize = 64 << 20;

/// Images in class folders. The augmentation is a horizontal flip with probability one half.
#[derive(Debug)]
pub struct ImageFolder {
    index: ImageIndex,
    image_size: usize,
    normalize: Normalize,
    fields: [Field; 2],
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
            fields: image_and_label(image_size),
            idle: Mutex::new(Vec::new()),
        }
    }

    /// How many classes there are; labels are below it.
    pub fn classes(&self) -> usize {
        self.index.classes.len()
    }

    /// Height and width of the images, in pixels.
    pub fn image_size(&self) -> usize {
        self.image_size
    }

    /// The class of a sample, known without loading it.
    ///
    /// # Panics
    /// If `index` is not below [`Dataset::len`].
    pub fn label(&self, index: usize) -> u32 {
        self.index.samples[index].0
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

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(
        &self,
        index: usize,
        random: Option<&mut SampleRng>,
        out: &mut [Slot<'_>],
    ) -> Result<(), SampleError> {
        let [image, label] = out else {
            panic!("an image folder has two fields, not {}", out.len());
        };
        label.i64()[0] = i64::from(self.label(index));
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = idle().pop().unwrap_or_default();
        let result = self.load_with(&mut scratch, &self.index.path(index), random, image.f32());
        if scratch.held_bytes() <= KEPT_BYTES {
            idle().push(scratch);
        }
        result
    }

    fn describe(&self, index: usize) -> String {
        self.index.path(index).display().to_string()
    }
}

/// The fields of a labelled square RGB image.
pub(super) fn image_and_label(image_size: usize) -> [Field; 2] {
    [
        Field::f32("image", [3, image_size, image_size]),
        Field::i64("label", []),
    ]
}

#[cfg(test)]
mod tests;
