//! Brightness, contrast, saturation and hue in a random order.

use dtrain_recipe::changes::Jitter;

use super::super::rng::{SampleRng, below, between};
use super::brightness::Factor;
use super::contrast::ContrastFactor;
use super::hue::Hue;
use super::saturation::Saturation;
use super::{Change, Drawn, Sizes, happens};

/// As torchvision's `ColorJitter`.
impl Change for Jitter {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        // The draws of a jitter of all images are those of a recipe without the key.
        if self.share < 1.0 && !happens(rng, self.share) {
            return;
        }
        let mut order = [0, 1, 2, 3];
        for last in (1..order.len()).rev() {
            order.swap(last, below(rng, last as u32 + 1) as usize);
        }
        let mut factor = |strength: f64| {
            let (low, high) = ((1.0 - strength).max(0.0), 1.0 + strength);
            (strength > 0.0).then(|| between(rng, low as f32, high as f32))
        };
        let factors = [self.brightness, self.contrast, self.saturation].map(&mut factor);
        let hue = self.hue as f32;
        let hue = (hue > 0.0).then(|| between(rng, -hue, hue));
        for change in order {
            match (change, factors.get(change).copied().unwrap_or(hue)) {
                (0, Some(factor)) => drawn.colour(Factor(factor)),
                (1, Some(factor)) => drawn.colour(ContrastFactor(factor)),
                (2, Some(factor)) => drawn.colour(Saturation(factor)),
                (_, Some(turn)) => drawn.colour(Hue(turn)),
                (_, None) => {}
            }
        }
    }
}
