//! The operations of RandAugment, TrivialAugment and AutoAugment, with torchvision's tables of magnitudes.

use dtrain_recipe::changes::PixelFilter;

use super::super::rng::{SampleRng, coin};
use super::Drawn;
use super::affine::{self, Parts};
use super::autocontrast::WholeRange;
use super::brightness::Factor;
use super::contrast::ContrastFactor;
use super::equalize::Equal;
use super::invert::Negative;
use super::moves::Move;
use super::posterize::Bits;
use super::saturation::Saturation;
use super::sharpness::Sharpen;
use super::solarize::InvertFrom;
use super::warp::{Map, Warp};

/// An operation, with torchvision's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
    Invert,
}

use Operation::*;

/// The operations to choose from, in torchvision's order.
pub(super) const ALL: [Operation; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];

/// The largest magnitudes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strengths {
    shear: f32,
    /// In pixels of the width and of the height.
    translate: [f32; 2],
    degrees: f32,
    /// Of brightness, colour, contrast and sharpness.
    factor: f32,
    /// The bits that posterising takes.
    bits: f32,
}

impl Strengths {
    /// Returns those of RandAugment and AutoAugment, for images of the size (width, height).
    pub(super) fn narrow((width, height): (u32, u32)) -> Self {
        let translate = [width, height].map(|side| (150.0 / 331.0 * f64::from(side)) as f32);
        Self { shear: 0.3, translate, degrees: 30.0, factor: 0.9, bits: 4.0 }
    }

    /// Returns those of TrivialAugment.
    pub(super) fn wide() -> Self {
        Self { shear: 0.99, translate: [32.0; 2], degrees: 135.0, factor: 0.99, bits: 6.0 }
    }

    /// Returns number `at` of `count` magnitudes of an operation that has some.
    pub(super) fn magnitude(&self, operation: Operation, at: usize, count: usize) -> Option<f32> {
        let most = match operation {
            ShearX | ShearY => self.shear,
            TranslateX => self.translate[0],
            TranslateY => self.translate[1],
            Rotate => self.degrees,
            Brightness | Color | Contrast | Sharpness => self.factor,
            Posterize => {
                let taken = at as f32 / ((count as f32 - 1.0) / self.bits);
                return Some((8.0 - taken).round_ties_even());
            }
            Solarize => return Some(evenly(1.0, 0.0, at, count)),
            Identity | AutoContrast | Equalize | Invert => return None,
        };
        Some(evenly(0.0, most, at, count))
    }
}

/// Returns number `at` of `count` values from one to another, as `torch.linspace` does: the step is rounded, then each value once.
fn evenly(start: f32, end: f32, at: usize, count: usize) -> f32 {
    let step = f64::from((end - start) / (count as f32 - 1.0));
    let value = match at < count / 2 {
        true => f64::from(start) + step * at as f64,
        false => f64::from(end) - step * (count - 1 - at) as f64,
    };
    value as f32
}

impl Operation {
    /// Returns whether the magnitude may be negative.
    pub(super) fn is_signed(self) -> bool {
        !matches!(self, Identity | Posterize | Solarize | AutoContrast | Equalize | Invert)
    }

    /// Adds the operation with a magnitude, whose sign is drawn if it has one.
    pub(super) fn draw(
        self,
        magnitude: Option<f32>,
        rng: &mut SampleRng,
        (size, filter): ((u32, u32), PixelFilter),
        drawn: &mut Drawn,
    ) {
        let magnitude = magnitude.unwrap_or_default();
        let magnitude = if self.is_signed() && coin(rng) { -magnitude } else { magnitude };
        self.add(magnitude, size, filter, drawn);
    }

    /// Adds the operation to what was drawn for an image of the size (width, height).
    pub(super) fn add(self, magnitude: f32, size: (u32, u32), filter: PixelFilter, drawn: &mut Drawn) {
        let mut warp = |map: Map| drawn.shift(Move::Warp(Warp::new(map, filter)));
        let wide = f64::from(magnitude);
        // The upper left corner stays.
        let center = [-f64::from(size.0) / 2.0, -f64::from(size.1) / 2.0];
        let angle = wide.atan().to_degrees();
        match self {
            Identity => {}
            ShearX => warp(Parts { shear: [angle, 0.0], center, ..Parts::default() }.map()),
            ShearY => warp(Parts { shear: [0.0, angle], center, ..Parts::default() }.map()),
            TranslateX => warp(Parts { translate: [wide.trunc(), 0.0], ..Parts::default() }.map()),
            TranslateY => warp(Parts { translate: [0.0, wide.trunc()], ..Parts::default() }.map()),
            Rotate => warp(affine::rotated(wide)),
            Brightness => drawn.colour(Factor(1.0 + magnitude)),
            Color => drawn.colour(Saturation(1.0 + magnitude)),
            Contrast => drawn.colour(ContrastFactor(1.0 + magnitude)),
            Sharpness => drawn.colour(Sharpen(1.0 + magnitude)),
            Posterize => drawn.colour(Bits(magnitude as u32)),
            Solarize => drawn.colour(InvertFrom(magnitude)),
            AutoContrast => drawn.colour(WholeRange),
            Equalize => drawn.colour(Equal),
            Invert => drawn.colour(Negative),
        }
    }
}
