//! The lighting noise of AlexNet.

use std::f64::consts::TAU;

use dtrain_recipe::changes::Lighting;

use super::super::raster::Raster;
use super::super::rng::{SampleRng, unit};
use super::values::{self, Block, OfBlock};
use super::{Change, Colour, Drawn, Sizes};

/// The variances of ImageNet's colours along their principal components, of values from 0 to 1, as fb.resnet.torch has them.
const LENGTHS: [f64; 3] = [0.2175, 0.0188, 0.0045];
/// The components of red, green and blue.
const COMPONENTS: [[f64; 3]; 3] =
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]];

impl Change for Lighting {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        let amounts = [(); 3].map(|()| self.strength * normal(rng));
        drawn.colour(Light::new(amounts));
    }
}

/// Draws from a normal distribution, by the method of Box and Muller.
fn normal(rng: &mut SampleRng) -> f64 {
    let (radius, angle) = (1.0 - f64::from(unit(rng)), f64::from(unit(rng)));
    (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
}

/// What is added to red, green and blue.
#[derive(Debug)]
pub(super) struct Light(pub(super) [f32; 3]);

impl Light {
    /// Makes the light of an amount of each component.
    pub(super) fn new(amounts: [f64; 3]) -> Self {
        let part = |component: [f64; 3]| -> f64 {
            component
                .iter()
                .zip(amounts)
                .zip(LENGTHS)
                .map(|((part, amount), length)| part * amount * length)
                .sum()
        };
        Self(COMPONENTS.map(|component| part(component) as f32))
    }
}

impl Colour for Light {
    fn change(&self, image: &mut Raster) {
        values::each_block(image, self);
    }
}

impl OfBlock for Light {
    #[inline(always)]
    fn change(&self, block: &mut Block, is_of_bytes: bool) {
        for (values, light) in block.iter_mut().zip(self.0) {
            // Half a level more, since bytes lose their fractions.
            let light = if is_of_bytes { 255.0 * light + 0.5 } else { light };
            values.iter_mut().for_each(|value| *value += light);
        }
    }
}
