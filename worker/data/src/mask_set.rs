//! Images with a class for each pixel, as a data set.

use super::check::Listed;
use super::dataset::{Dataset, Field, Slot};
use super::error::SampleError;
use super::mask_folder::MaskIndex;
use super::picture_set::{ImageOptions, MaskJob, Pictures};
use super::rng::SampleRng;

/// Images and masks from two folders: the fields `image`, `[C, H, W]`, and `mask`, `[H, W]`.
///
/// A mask gets what its image gets: the same resizing, by the nearest pixel, and the same random choices. Pixels that a
/// random shift brings in from outside of the image have the value [`super::MaskRule::ignore`].
#[derive(Debug)]
pub struct ImageMasks {
    index: MaskIndex,
    pictures: Pictures,
    fields: [Field; 2],
}

impl ImageMasks {
    /// The pairs of `index`, prepared as the options say.
    ///
    /// # Panics
    /// If the normalisation is for another number of channels.
    pub fn new(index: MaskIndex, options: ImageOptions) -> Self {
        Self {
            fields: image_and_mask(options.shape()),
            pictures: Pictures::new(index.len(), options),
            index,
        }
    }

    /// How many classes there are; values of masks are below it, or [`super::MaskRule::ignore`].
    pub fn classes(&self) -> usize {
        self.index.rule.classes
    }

    /// Width and height of the images, in pixels.
    pub fn image_size(&self) -> (u32, u32) {
        self.pictures.options.size
    }

    /// The list of pairs.
    pub fn index(&self) -> &MaskIndex {
        &self.index
    }
}

impl Dataset for ImageMasks {
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
        let [image, mask] = out else {
            panic!("images and masks are two fields, not {}", out.len());
        };
        let (path, mask_path) = (self.index.image_path(index), self.index.mask_path(index));
        let job = MaskJob {
            path: &mask_path,
            rule: self.index.rule,
            out: mask.i64(),
        };
        self.pictures.load(index, &path, random, image.f32(), Some(job))
    }

    fn describe(&self, index: usize) -> String {
        self.index.image_path(index).display().to_string()
    }
}

/// The fields of an image with a mask.
pub(super) fn image_and_mask([channels, height, width]: [usize; 3]) -> [Field; 2] {
    [
        Field::f32("image", [channels, height, width]),
        Field::i64("mask", [height, width]),
    ]
}

#[cfg(test)]
mod tests;
