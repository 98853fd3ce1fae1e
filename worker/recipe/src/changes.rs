//! `data.changes`: random changes to training images, declared once for each.

use std::path::PathBuf;

use dtrain_common::choices;
use dtrain_common::recipe::kinds::{Kind, PART, PATH, RATE, Range, choice};

use super::named::named;
use super::{Augment, Recipe};

choices! {
    /// How the pixels of an image are found between those of the image before; masks and maps always take the nearest.
    PixelFilter {
        Bilinear = "bilinear": "The mean of the four pixels around the place, weighted by their distances.",
        Nearest = "nearest": "The nearest pixel.",
    }
}

const SHARE: Kind = Kind::Number(Range::UP_TO_ONE);
const FILTER: Kind = choice(PixelFilter::NAMES);

named! { $
/// A random change to a training image.
Change, CHANGES, each_change, "data.changes":

/// A random part of the file, scaled to the network's size: torchvision's `RandomResizedCrop`.
"resized-crop" ResizedCrop {
    /// The least and the largest part of the area.
    area: [f64; 2] = [0.08, 1.0], Kind::Numbers(2, 2, Range::ABOVE_ZERO);
    /// The least and the largest ratio of width to height.
    ratio: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0], Kind::Numbers(2, 2, Range::ABOVE_ZERO);
}

/// A random part of the scaled image in place of the central one: torchvision's `RandomCrop` after `Resize`. `data.crop_fraction` is the
/// part of each side.
"random-crop" RandomCrop {
    /// The part of the images that have a random part; the others have the central one.
    share: f64 = 1.0, SHARE;
}

/// Moves the image over black: torchvision's `RandomCrop` of the image's size with padding.
"crop" Crop {
    /// The furthest shift, as a part of the side.
    padding: f64 = 0.125, PART;
}

/// Mirrors the image left to right.
"flip" Flip {
    /// The part of the images that is mirrored.
    share: f64 = 0.5, PART;
}

/// Multiplies the values by a random factor: `ColorJitter(brightness)` of torchvision.
"brightness" Brightness {
    /// The factor is from 1 less this to 1 and this.
    strength: f64 = 0.4, PART;
}

/// Turns the image upside down: torchvision's `RandomVerticalFlip`.
"vertical-flip" VerticalFlip {
    /// The part of the images that is turned.
    share: f64 = 0.5, SHARE;
}

/// Turns a square image by 90, 180 or 270 degrees, each as often.
"rot90" Rot90 {
    /// The part of the images that is turned.
    share: f64 = 0.75, SHARE;
}

/// Changes brightness, contrast, saturation and hue in a random order: torchvision's `ColorJitter`. 0 leaves one as it is.
"jitter" Jitter {
    /// The factor is from 1 less this (at least 0) to 1 and this.
    brightness: f64 = 0.4, RATE;
    /// The factor is from 1 less this (at least 0) to 1 and this.
    contrast: f64 = 0.4, RATE;
    /// The factor is from 1 less this (at least 0) to 1 and this.
    saturation: f64 = 0.4, RATE;
    /// The furthest turn of the colour circle, as a part of it; up to 0.5.
    hue: f64 = 0.1, RATE;
    /// The part of the images that is changed.
    share: f64 = 1.0, SHARE;
}

/// Makes the image grey, with three equal channels: torchvision's `RandomGrayscale`.
"grayscale" Grayscale {
    /// The part of the images that becomes grey.
    share: f64 = 0.1, SHARE;
}

/// Blurs the image: torchvision's `GaussianBlur`.
"blur" Blur {
    /// The side of the kernel in pixels, an odd number.
    kernel: usize = 23, Kind::Whole(3, 255);
    /// The least and the largest standard deviation in pixels.
    sigma: [f64; 2] = [0.1, 2.0], Kind::Numbers(2, 2, Range::ABOVE_ZERO);
    /// The part of the images that is blurred.
    share: f64 = 0.5, SHARE;
}

/// Inverts the values from a threshold on: torchvision's `RandomSolarize`.
"solarize" Solarize {
    /// The least value that is inverted, as a part of white.
    threshold: f64 = 0.5, SHARE;
    /// The part of the images that is changed.
    share: f64 = 0.5, SHARE;
}

/// Keeps the highest bits of each value: torchvision's `RandomPosterize`.
"posterize" Posterize {
    /// The bits that are kept.
    bits: usize = 4, Kind::Whole(1, 7);
    /// The part of the images that is changed.
    share: f64 = 0.5, SHARE;
}

/// Makes all values of a channel as frequent as each other: torchvision's `RandomEqualize`.
"equalize" Equalize {
    /// The part of the images that is changed.
    share: f64 = 0.5, SHARE;
}

/// Stretches the values of each channel from black to white: torchvision's `RandomAutocontrast`.
"autocontrast" Autocontrast {
    /// The part of the images that is changed.
    share: f64 = 0.5, SHARE;
}

/// Sharpens the image: torchvision's `RandomAdjustSharpness`.
"sharpness" Sharpness {
    /// 0 blurs, 1 changes nothing, and more sharpens.
    factor: f64 = 2.0, RATE;
    /// The part of the images that is changed.
    share: f64 = 0.5, SHARE;
}

/// Makes white of black: torchvision's `RandomInvert`.
"invert" Invert {
    /// The part of the images that is inverted.
    share: f64 = 0.5, SHARE;
}

/// Adds a random amount of the principal components of ImageNet's colours, as AlexNet's training.
"lighting" Lighting {
    /// The standard deviation of the amount.
    strength: f64 = 0.1, Kind::Number(Range::ABOVE_ZERO);
}

/// Makes a random rectangle black: torchvision's `RandomErasing` before normalisation.
"erasing" Erasing {
    /// The part of the images that loses a rectangle.
    share: f64 = 0.5, SHARE;
    /// The least and the largest part of the area.
    area: [f64; 2] = [0.02, 0.33], Kind::Numbers(2, 2, Range::ABOVE_ZERO);
    /// The least and the largest ratio of height to width.
    ratio: [f64; 2] = [0.3, 3.3], Kind::Numbers(2, 2, Range::ABOVE_ZERO);
}

/// Rotates the image over black: torchvision's `RandomRotation`.
"rotation" Rotation {
    /// The largest angle in either direction; up to 180.
    degrees: f64 = 15.0, Kind::Number(Range::ABOVE_ZERO);
    /// How pixels of images are interpolated.
    filter: PixelFilter = PixelFilter::Bilinear, FILTER;
}

/// Rotates, moves, scales and shears the image over black: torchvision's `RandomAffine`.
"affine" Affine {
    /// The largest angle in either direction; up to 180.
    degrees: f64 = 10.0, RATE;
    /// The furthest shift, as a part of each side.
    translate: f64 = 0.1, Kind::Number(Range::BELOW_ONE);
    /// The least and the largest factor of the size.
    scale: [f64; 2] = [0.9, 1.1], Kind::Numbers(2, 2, Range::ABOVE_ZERO);
    /// The largest angle of a shear along the rows in either direction, in degrees; below 90.
    shear: f64 = 0.0, RATE;
    /// How pixels of images are interpolated.
    filter: PixelFilter = PixelFilter::Bilinear, FILTER;
}

/// Shows the image from another side, over black: torchvision's `RandomPerspective`.
"perspective" Perspective {
    /// How far a corner moves at most, as a part of half of the side.
    distortion: f64 = 0.5, SHARE;
    /// The part of the images that is changed.
    share: f64 = 0.5, SHARE;
    /// How pixels of images are interpolated.
    filter: PixelFilter = PixelFilter::Bilinear, FILTER;
}

/// Applies random operations, all of one strength: torchvision's `RandAugment`.
"randaugment" Randaugment {
    /// Operations in a row.
    operations: usize = 2, Kind::Whole(1, 16);
    /// The strength of each, of 30.
    magnitude: usize = 9, Kind::Whole(0, 30);
    /// How pixels of images are interpolated.
    filter: PixelFilter = PixelFilter::Nearest, FILTER;
}

/// Applies one random operation of a random strength: torchvision's `TrivialAugmentWide`.
"trivialaugment" Trivialaugment {
    /// How pixels of images are interpolated.
    filter: PixelFilter = PixelFilter::Nearest, FILTER;
}

/// A change of the user: a program that `dtrain import --change` wrote. It changes the images as the network gets them, by random numbers of
/// each sample.
"program" Program {
    /// The absolute path of the program.
    program: Option<PathBuf> = None, PATH;
}

/// Applies one of 25 pairs of operations that were found for ImageNet: torchvision's `AutoAugment`.
"autoaugment" Autoaugment {
    /// How pixels of images are interpolated.
    filter: PixelFilter = PixelFilter::Nearest, FILTER;
}
}

impl Change {
    /// Returns the file of the user's own change.
    pub fn file(&self) -> Option<&PathBuf> {
        if let Self::Program(own) = self { own.program.as_ref() } else { None }
    }

    pub(super) fn file_mut(&mut self) -> Option<&mut PathBuf> {
        if let Self::Program(own) = self { own.program.as_mut() } else { None }
    }
}

impl Augment {
    /// Returns the changes that the word stands for.
    pub fn changes(self) -> Vec<Change> {
        let flip = Change::Flip(Flip::default());
        match self {
            Self::None | Self::Shift => Vec::new(),
            Self::Flip => vec![flip],
            Self::CropFlip => vec![Change::Crop(Crop::default()), flip],
            Self::ResizedCropFlip => vec![Change::ResizedCrop(ResizedCrop::default()), flip],
        }
    }
}

impl Recipe {
    /// Returns the random changes to training images in their order: `data.changes`, else those of `data.augment`.
    pub fn changes(&self) -> Vec<Change> {
        let data = &self.data;
        if data.changes.is_empty() { data.augment.changes() } else { data.changes.clone() }
    }
}
