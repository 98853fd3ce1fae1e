//! Random changes to training images that keep their meaning, and the order of the draws.
//!
//! All choices come from the sample's own generator, a function of (seed, epoch, sample). They are whole
//! pixels, so that an image and its mask change alike.

use dtrain_recipe::Augment;

use super::fit::Frame;
use super::plane::Placement;
use super::rng::{SampleRng, below, between, coin};

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Choice {
    /// The rectangle of the decoded image to use instead of [`Frame::new`]'s.
    pub(super) frame: Option<Frame>,
    pub(super) placement: Placement,
}

/// Returns whether choices apply to the decoded image, not only to the resized one.
pub(super) fn needs_decoded(augment: Augment) -> bool {
    augment == Augment::ResizedCropFlip
}

/// Draws for an image of the size `source` (width, height) that becomes `target`. As in torchvision,
/// `crop-flip` is `RandomCrop(size, padding)` with an eighth of the side (4 pixels of 32) of zeros, and
/// `resized-crop-flip` is `RandomResizedCrop(size)`: 8% to 100% of the area, a ratio of sides from 3/4 to
/// 4/3. Both then mirror half of the images.
pub(super) fn draw(augment: Augment, rng: &mut SampleRng, source: (u32, u32), target: (u32, u32)) -> Choice {
    let mut choice = Choice::default();
    match augment {
        Augment::None | Augment::Shift => return choice,
        Augment::Flip => {}
        Augment::CropFlip => {
            let mut shift = |side: u32| {
                let padding = padding(side);
                below(rng, 2 * padding + 1) as i32 - padding as i32
            };
            choice.placement.left = shift(target.0);
            choice.placement.top = shift(target.1);
        }
        Augment::ResizedCropFlip => choice.frame = Some(random_rectangle(rng, source, target)),
    }
    choice.placement.flip = coin(rng);
    choice
}

fn padding(side: u32) -> u32 {
    (side + 4) / 8
}

const AREA: (f32, f32) = (0.08, 1.0);
const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);
const TRIES: usize = 10;

fn random_rectangle(rng: &mut SampleRng, (width, height): (u32, u32), target: (u32, u32)) -> Frame {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..TRIES {
        let part = area * f64::from(between(rng, AREA.0, AREA.1));
        let ratio = f64::from(between(rng, RATIO.0.ln() as f32, RATIO.1.ln() as f32)).exp();
        let size =
            ((part * ratio).sqrt().round_ties_even() as u32, (part / ratio).sqrt().round_ties_even() as u32);
        if (1..=width).contains(&size.0) && (1..=height).contains(&size.1) {
            let left = below(rng, width - size.0 + 1);
            let top = below(rng, height - size.1 + 1);
            return Frame::rectangle((left, top), size, target);
        }
    }
    // The largest central rectangle with an allowed ratio.
    let ratio = f64::from(width) / f64::from(height);
    let size = if ratio < RATIO.0 {
        (width, (f64::from(width) / RATIO.0).round_ties_even() as u32)
    } else if ratio > RATIO.1 {
        ((f64::from(height) * RATIO.1).round_ties_even() as u32, height)
    } else {
        (width, height)
    };
    let size = (size.0.clamp(1, width), size.1.clamp(1, height));
    Frame::rectangle(((width - size.0) / 2, (height - size.1) / 2), size, target)
}

#[cfg(test)]
mod tests;
