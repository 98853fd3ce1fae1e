//! Image folders as a data set.

use super::dataset::{Dataset, Field, Slot};
use super::error::SampleError;
use super::image_folder::ImageIndex;
use super::picture_set::{ImageOptions, Pictures};
use super::rng::SampleRng;

/// Images in class folders: the fields `image`, `[C, H, W]`, and `label`, a single number.
#[derive(Debug)]
pub struct ImageFolder {
    index: ImageIndex,
    pictures: Pictures,
    fields: [Field; 2],
}

impl ImageFolder {
    /// The images of `index`, prepared as the options say.
    ///
    /// # Panics
    /// If the normalisation is for another number of channels.
    pub fn new(index: ImageIndex, options: ImageOptions) -> Self {
        Self {
            fields: image_and_label(options.shape()),
            pictures: Pictures::new(index.len(), options),
            index,
        }
    }

    /// How many classes there are; labels are below it.
    pub fn classes(&self) -> usize {
        self.index.classes.len()
    }

    /// Width and height of the images, in pixels.
    pub fn image_size(&self) -> (u32, u32) {
        self.pictures.options.size
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
        let path = self.index.path(index);
        self.pictures.load(index, &path, random, image.f32(), None)
    }

    fn describe(&self, index: usize) -> String {
        self.index.path(index).display().to_string()
    }
}

/// The fields of a labelled image.
pub(super) fn image_and_label(shape: [usize; 3]) -> [Field; 2] {
    [Field::f32("image", shape), Field::i64("label", [])]
}

#[cfg(test)]
mod tests;
