//! Random parts of the scaled image.

use dtrain_recipe::changes::RandomCrop;

use super::super::rng::{SampleRng, unit};
use super::{Change, Drawn, Sizes, happens};

/// As torchvision's `RandomCrop(size)` of an image that was scaled to `size / crop_fraction`.
impl Change for RandomCrop {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        drawn.place = happens(rng, self.share).then(|| [unit(rng), unit(rng)].map(f64::from));
    }

    fn needs_decoded(&self) -> bool {
        true
    }
}
