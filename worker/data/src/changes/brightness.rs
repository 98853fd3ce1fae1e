//! Brightness.

use std::sync::Arc;

use dtrain_recipe::changes::Brightness;

use super::super::raster::{Raster, Values};
use super::super::rng::{SampleRng, between};
use super::{Change, Colour, Drawn, Sizes};

impl Change for Brightness {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        let strength = self.strength as f32;
        drawn.colours.push(Arc::new(Factor(between(rng, 1.0 - strength, 1.0 + strength))));
    }
}

#[derive(Debug)]
struct Factor(f32);

impl Colour for Factor {
    /// As torchvision, bytes lose their fractions and stay below 256. Other values have no bounds.
    fn change(&self, image: &mut Raster) {
        match &mut image.values {
            Values::U8(values) => {
                values.iter_mut().for_each(|value| *value = (f32::from(*value) * self.0) as u8)
            }
            Values::F32(values) => values.iter_mut().for_each(|value| *value *= self.0),
        }
    }
}
