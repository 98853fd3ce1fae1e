//! Losses of several outputs, each with another target: each term has a number for each sample, and these are added.

use tch::{TchError, Tensor};

use super::classes::{class_losses, set_losses};
use super::of_samples::{Term, of_samples};
use super::pixels::{Masks, image_losses};
use super::regression::{Units, map_losses, vector_losses};
use crate::Outputs;

/// The meaning of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// One of this number of classes for each sample: N int64.
    Class(usize),
    /// Numbers of a sample, also 1 or 0 for each of its classes: N x K float32.
    Numbers,
    /// A class for each pixel: N x H x W int64.
    Pixels {
        /// The number of classes.
        classes: usize,
        /// The class of pixels that do not count.
        ignore: i64,
    },
    /// A number for each pixel, NaN where it does not count: N x H x W float32.
    Map,
}

/// Returns the loss of each sample by a term, with its factor: N float32. Samples of weight 0 in `weights`, N, may have any outputs,
/// whose derivative is 0. A loss of pixels is the mean over those that count, and 0 without one. `units`: those of numbers and maps.
pub fn losses(
    term: &Term,
    outputs: &Outputs,
    target: &Tensor,
    weights: &Tensor,
    goal: Goal,
    units: &Units,
) -> Result<Tensor, TchError> {
    let settings = &term.settings;
    match goal {
        Goal::Class(known) => class_losses(term, outputs, target, weights, known),
        Goal::Numbers if of_samples(settings).of_sets().is_some() => {
            set_losses(std::slice::from_ref(term), outputs, target, weights)
        }
        Goal::Numbers => vector_losses(settings, outputs, target, weights, units),
        Goal::Pixels { classes, ignore } => {
            image_losses(term, outputs, &Masks { mask: target, weights, ignore, classes })
        }
        Goal::Map => map_losses(settings, outputs, target, weights, units),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_recipe::SampleLoss;
    use dtrain_recipe::sample_losses::{Boundary, CrossEntropy, Dice, Huber, Mse};
    use tch::{Device, Kind};

    use super::*;
    use crate::Loss;
    use crate::parity::OfSamples;

    fn compare(name: &str, reference: &OfSamples, goal: Goal, terms: &[SampleLoss]) {
        reference.compare(name, |outputs, targets, weights| {
            let (outputs, units) = (Outputs::only(outputs.shallow_clone()), Units::of_targets(3));
            let mut total = Tensor::zeros_like(weights);
            for settings in terms {
                let term = Term { settings: settings.clone(), class_weights: None, ranks: None };
                total += losses(&term, &outputs, targets, weights, goal, &units).unwrap();
            }
            Loss::of_samples(&total, weights, Tensor::zeros([0], (Kind::Double, Device::Cpu))).unwrap()
        });
    }

    /// Every sample counts alike, also an image whose pixels do not count.
    #[test]
    fn losses_of_outputs_are_means_over_samples() {
        let cross_entropy = || SampleLoss::CrossEntropy(CrossEntropy::default());
        let classes = OfSamples::read("logits", "labels", 3);
        compare("cross_entropy", &classes, Goal::Class(4), &[cross_entropy()]);
        let numbers = OfSamples::read("output", "targets", 3);
        let several =
            [SampleLoss::Mse(Mse { weight: 0.5 }), SampleLoss::Huber(Huber { weight: 2.0, delta: 0.5 })];
        compare("several_of_numbers", &numbers, Goal::Numbers, &several);
        let boundary = SampleLoss::Boundary(Boundary { weight: 0.5, factor: 5.0, width: 1 });
        let of_pixels = [cross_entropy(), boundary, SampleLoss::Dice(Dice::default())];
        let pixels = OfSamples::read("pixels", "mask", 1);
        compare("pixels_of_outputs", &pixels, Goal::Pixels { classes: 3, ignore: 255 }, &of_pixels);
        let maps = OfSamples::read("map_output", "map", 1);
        compare("map_of_outputs", &maps, Goal::Map, &several);
    }
}
