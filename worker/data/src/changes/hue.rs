//! Hue.

use super::super::raster::Raster;
use super::Colour;
use super::values::{self, BLOCK, Block, OfBlock};

/// A turn of all colours, as a part of the colour circle.
#[derive(Debug)]
pub(super) struct Hue(pub(super) f32);

impl Colour for Hue {
    fn change(&self, image: &mut Raster) {
        values::each_block(image, self);
    }
}

impl OfBlock for Hue {
    /// As torchvision, bytes are scaled up a little before they lose their fractions. Largest and smallest value of a pixel stay, so
    /// values need no bounds.
    #[inline(always)]
    fn change(&self, [red, green, blue]: &mut Block, is_of_bytes: bool) {
        let turn = 6.0 * self.0;
        let scale = if is_of_bytes { 255.999 / 255.0 } else { 1.0 };
        for at in 0..BLOCK {
            let (r, g, b) = (red[at], green[at], blue[at]);
            let (most, least) = (larger(larger(r, g), b), smaller(smaller(r, g), b));
            let range = most - least;
            let divisor = if range == 0.0 { 1.0 } else { range };
            let (is_red, is_green) = (most == r, most == g);
            let difference = if is_green { b - r } else { r - g };
            let difference = if is_red { g - b } else { difference };
            let sector = if is_green { 8.0 } else { 10.0 };
            let sector = if is_red { 6.0 } else { sector };
            // From 2 to 14: red is at 0, 6 and 12, green 2 and blue 4 after it.
            let hue = difference / divisor + sector + turn;
            let hue = if hue >= 12.0 { hue - 12.0 } else { hue };
            let hue = if hue >= 6.0 { hue - 6.0 } else { hue };
            let (scaled, lowest) = (range * scale, least * scale);
            red[at] = lowest + scaled * part((hue - 3.0).abs() - 1.0);
            green[at] = lowest + scaled * part(2.0 - (hue - 2.0).abs());
            blue[at] = lowest + scaled * part(2.0 - (hue - 4.0).abs());
        }
    }
}

#[inline(always)]
fn part(value: f32) -> f32 {
    smaller(larger(value, 0.0), 1.0)
}

// The methods of f32 also order values that are no numbers, which costs time.

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn smaller(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}
