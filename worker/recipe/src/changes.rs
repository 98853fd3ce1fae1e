//! `data.changes`: random changes to training images, declared once for each.

use dtrain_common::recipe::kinds::{Kind, PART, Range};

use super::named::named;
use super::{Augment, Recipe};

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

/// Returns why a list of changes cannot be applied, with the number of the change.
pub(super) fn problem(changes: &[Change]) -> Option<(usize, &'static str)> {
    let rising = |[least, most]: [f64; 2]| least <= most;
    changes.iter().enumerate().find_map(|(at, change)| {
        let same = |other: &Change| std::mem::discriminant(other) == std::mem::discriminant(change);
        let problem = match change {
            _ if changes[..at].iter().any(same) => "the change is there twice; remove one of the two",
            Change::ResizedCrop(_) if at > 0 => "it takes a part of the file, so put it first",
            Change::ResizedCrop(crop) if !rising(crop.area) || !rising(crop.ratio) => {
                "area and ratio are the least and the largest value; put the smaller number first"
            }
            Change::ResizedCrop(crop) if crop.area[1] > 1.0 => {
                "an image has no larger part than 1; lower area"
            }
            _ => return None,
        };
        Some((at, problem))
    })
}
