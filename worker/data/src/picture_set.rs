//! Images of files as a data set, with a class for each image or for each pixel.

use std::path::PathBuf;

use super::check::Listed;
use super::dataset::{Dataset, Field, Slot};
use super::error::SampleError;
use super::image_folder::ImageIndex;
use super::mask_folder::MaskIndex;
use super::mask_rule::MaskRule;
use super::pictures::{ImageOptions, MaskJob, Pictures};
use super::rng::SampleRng;

/// Images in class folders: the fields `image`, `[C, H, W]`, and `label`, a single number.
pub type ImageFolder = PictureSet<ImageIndex>;

/// Images and masks from two folders: the fields `image`, `[C, H, W]`, and `mask`, `[H, W]`.
///
/// A mask gets what its image gets: the same resizing, by the nearest pixel, and the same random choices. Pixels that a
/// random shift brings in from outside of the image have the value [`super::MaskRule::ignore`].
pub type ImageMasks = PictureSet<MaskIndex>;

/// What is to be learnt of one image.
pub enum Target {
    /// Its class.
    Label(u32),
    /// The file with a class for each of its pixels, and how to read it.
    Mask(PathBuf, MaskRule),
}

/// A list of image files of which something is to be learnt.
pub trait Targets: Listed + Send {
    /// How many classes there are; targets are below it, or ignored.
    fn classes(&self) -> usize;

    /// What there is to learn of a sample.
    fn target(&self, sample: usize) -> Target;

    /// The field of that, for images of so many rows and columns.
    fn target_field(height: usize, width: usize) -> Field;
}

impl Targets for ImageIndex {
    fn classes(&self) -> usize {
        self.classes.len()
    }

    fn target(&self, sample: usize) -> Target {
        Target::Label(self.samples[sample].0)
    }

    fn target_field(_: usize, _: usize) -> Field {
        Field::i64("label", [])
    }
}

impl Targets for MaskIndex {
    fn classes(&self) -> usize {
        self.rule.classes
    }

    fn target(&self, sample: usize) -> Target {
        Target::Mask(self.mask_path(sample), self.rule)
    }

    fn target_field(height: usize, width: usize) -> Field {
        Field::i64("mask", [height, width])
    }
}

/// The images of a list, prepared alike.
#[derive(Debug)]
pub struct PictureSet<L> {
    list: L,
    pictures: Pictures,
    fields: [Field; 2],
}

impl<L: Targets> PictureSet<L> {
    /// The images of `list`, prepared as the options say.
    /// Panics if the normalisation is for another number of channels.
    pub fn new(list: L, options: ImageOptions) -> Self {
        let [channels, height, width] = options.shape();
        assert_eq!(
            options.normalize.channels(),
            channels,
            "a mean and a standard deviation for each channel"
        );
        let image = Field::image("image", options.shape(), options.normalize.clone());
        Self {
            fields: [image, L::target_field(height, width)],
            pictures: Pictures::new(list.count(), options),
            list,
        }
    }

    /// How many classes there are.
    pub fn classes(&self) -> usize {
        self.list.classes()
    }

    /// Width and height of the images, in pixels.
    pub fn image_size(&self) -> (u32, u32) {
        self.pictures.options.size
    }

    /// The list of files.
    pub fn index(&self) -> &L {
        &self.list
    }
}

impl<L: Targets> Dataset for PictureSet<L> {
    fn len(&self) -> usize {
        self.list.count()
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
        let [image, out] = out else {
            panic!(
                "images and what is learnt of them are two fields, not {}",
                out.len()
            );
        };
        let target = self.list.target(index);
        let mask = match &target {
            Target::Label(class) => {
                out.i64()[0] = i64::from(*class);
                None
            }
            Target::Mask(path, rule) => Some(MaskJob {
                path,
                rule: *rule,
                out: out.i64(),
            }),
        };
        self.pictures
            .load(index, &self.list.image_path(index), random, image.pixels(), mask)
    }

    fn describe(&self, index: usize) -> String {
        self.list.image_path(index).display().to_string()
    }
}

#[cfg(test)]
mod tests;
