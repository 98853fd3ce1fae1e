//! Sources in the proportion of their weights.

use super::super::rng::{Domain, keyed};
use super::Sampler;
use super::deck::Deck;
use super::shuffled::shuffle;

/// Each source as often as its weight states, up to one place; an epoch has as many places as there are samples. A source
/// with fewer samples than places begins again, in another order, so its samples are equally frequent up to one.
#[derive(Debug, Clone)]
pub struct Mixture {
    /// The number of samples of each source; those of the first are the first, and so on.
    pub samples: Vec<usize>,
    /// The weight of each source, above 0.
    pub weights: Vec<f64>,
}

impl Mixture {
    /// Returns the number of places of each source: whole parts first, then one more for the largest remainders.
    pub fn shares(&self) -> Vec<usize> {
        // Less than 1 each, so that no sum overflows. An empty source has no place.
        let most = self.weights.iter().copied().fold(0.0, f64::max);
        let weight = |at: usize| if self.samples[at] == 0 { 0.0 } else { self.weights[at] / most };
        let (places, sum) = (self.places(), (0..self.samples.len()).map(weight).sum::<f64>());
        let exact: Vec<f64> = (0..self.samples.len()).map(|at| places as f64 * (weight(at) / sum)).collect();
        let mut shares: Vec<usize> = exact.iter().map(|share| *share as usize).collect();
        let mut order: Vec<usize> = (0..shares.len()).filter(|&at| self.samples[at] > 0).collect();
        order.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
        let missing = places.saturating_sub(shares.iter().sum());
        order.iter().cycle().take(if order.is_empty() { 0 } else { missing }).for_each(|&at| shares[at] += 1);
        shares
    }
}

impl Sampler for Mixture {
    fn places(&self) -> usize {
        self.samples.iter().sum()
    }

    fn has_repeats(&self) -> bool {
        true
    }

    /// The order of the sources is shuffled, then each place takes the next sample of its source.
    fn epoch(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let mut rng = keyed(Domain::Mixture, seed, epoch, 0);
        let mut places: Vec<u32> = Vec::with_capacity(self.places());
        for (source, share) in (0u32..).zip(self.shares()) {
            places.extend(std::iter::repeat_n(source, share));
        }
        shuffle(&mut places, &mut rng);
        let mut first = 0;
        let mut decks = Vec::with_capacity(self.samples.len());
        for &samples in &self.samples {
            let end = first + samples as u32;
            decks.push(Deck::new((first..end).collect(), &mut rng));
            first = end;
        }
        places.iter_mut().for_each(|place| *place = decks[*place as usize].draw(&mut rng));
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn epochs_never_change() {
        let sampler = Mixture { samples: vec![6, 2], weights: vec![1.0, 3.0] };
        // Golden values of a second implementation.
        assert_eq!(sampler.epoch(1, 0), [6, 7, 6, 7, 0, 3, 6, 7]);
        assert_eq!(sampler.epoch(1, 1), [7, 4, 6, 7, 6, 6, 7, 1]);
    }

    #[test]
    fn huge_weights_keep_their_proportion() {
        let of = |weights: [f64; 2]| Mixture { samples: vec![100, 100], weights: weights.into() }.shares();
        assert_eq!(of([1.5e308, 1e308]), [120, 80]);
        assert_eq!(of([1e-300, 3e-300]), [50, 150]);
        assert_eq!(of([1000.0, 1.0]), [200, 0]);
    }

    proptest! {
        #[test]
        fn sources_and_their_samples_have_their_shares(
            sources in prop::collection::vec((0usize..40, 0.01f64..10.0), 1..6), seed: u64, epoch: u64,
        ) {
            let (samples, weights): (Vec<_>, Vec<_>) = sources.into_iter().unzip();
            let sampler = Mixture { samples: samples.clone(), weights: weights.clone() };
            let places = sampler.epoch(seed, epoch);
            let total: usize = samples.iter().sum();
            prop_assert_eq!(places.len(), total);
            let mut counts = vec![0usize; total];
            places.iter().for_each(|sample| counts[*sample as usize] += 1);
            let sum: f64 = weights.iter().zip(&samples).filter(|(_, samples)| **samples > 0).map(|(weight, _)| weight).sum();
            let mut first = 0;
            for (weight, samples) in weights.iter().zip(samples) {
                let of_source = &counts[first..first + samples];
                first += samples;
                if samples > 0 {
                    let taken: usize = of_source.iter().sum();
                    prop_assert!((taken as f64 - total as f64 * weight / sum).abs() < 1.0 + 1e-9);
                    prop_assert!(of_source.iter().max().unwrap_or(&0) - of_source.iter().min().unwrap_or(&0) <= 1);
                }
            }
        }
    }
}
