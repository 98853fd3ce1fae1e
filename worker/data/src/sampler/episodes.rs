//! Episodes: a few classes, and a few samples of each.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::packed::Packed;
use super::super::rng::{Domain, SampleRng, below, keyed};
use super::Sampler;
use super::balanced::by_class;

/// The shape of an episode: Vinyals et al. 2016, arXiv 1606.04080.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpisodeShape {
    /// The number of classes.
    pub ways: usize,
    /// The support samples of each class.
    pub shots: usize,
    /// The query samples of each class.
    pub queries: usize,
}

impl EpisodeShape {
    /// Returns the samples of each class.
    pub fn of_class(self) -> usize {
        self.shots + self.queries
    }

    /// Returns the samples of an episode.
    pub fn samples(self) -> usize {
        self.ways * self.of_class()
    }
}

/// Episodes of a set. Each is drawn on its own: different classes, and different samples of each class.
#[derive(Debug, Clone)]
pub struct Episodes {
    pub shape: EpisodeShape,
    /// The number of episodes of an epoch.
    pub count: usize,
    /// The samples of each class that has some.
    classes: Arc<[Vec<u32>]>,
}

/// Why a set has no such episodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooFew {
    /// It has only this many classes.
    Classes(usize),
    /// The class of this number has only this many samples.
    Samples { class: usize, found: usize },
}

impl Episodes {
    /// Makes episodes of samples with these classes.
    ///
    /// # Errors
    /// Fewer classes, or fewer samples of a class, than an episode takes.
    pub fn new(shape: EpisodeShape, count: usize, classes: &Packed<u32>) -> Result<Self, TooFew> {
        let all = by_class(classes);
        let found = all.iter().filter(|samples| !samples.is_empty()).count();
        if found < shape.ways {
            return Err(TooFew::Classes(found));
        }
        let small = |samples: &&Vec<u32>| (1..shape.of_class()).contains(&samples.len());
        if let Some(least) = all.iter().filter(small).min_by_key(|samples| samples.len()) {
            let class = all.iter().position(|samples| samples == least).unwrap_or_default();
            return Err(TooFew::Samples { class, found: least.len() });
        }
        let classes = all.into_iter().filter(|samples| !samples.is_empty()).collect();
        Ok(Self { shape, count, classes })
    }

    /// Returns an episode of an evaluation, the same in every evaluation of every run.
    pub fn fixed(&self, episode: usize) -> Vec<u32> {
        let mut members = Vec::with_capacity(self.width());
        self.draw(&mut keyed(Domain::Episode, 0, 0, episode as u64), &mut members);
        members
    }

    /// Adds an episode: the support samples class by class, then the query samples.
    fn draw(&self, rng: &mut SampleRng, out: &mut Vec<u32>) {
        let EpisodeShape { ways, shots, .. } = self.shape;
        let classes = chosen(self.classes.len(), ways, rng);
        let samples: Vec<Vec<u32>> = classes
            .into_iter()
            .map(|class| {
                let of_class = &self.classes[class];
                let places = chosen(of_class.len(), self.shape.of_class(), rng);
                places.into_iter().map(|place| of_class[place]).collect()
            })
            .collect();
        out.extend(samples.iter().flat_map(|samples| &samples[..shots]));
        out.extend(samples.iter().flat_map(|samples| &samples[shots..]));
    }
}

impl Sampler for Episodes {
    fn places(&self) -> usize {
        self.count
    }

    fn width(&self) -> usize {
        self.shape.samples()
    }

    fn has_repeats(&self) -> bool {
        true
    }

    fn epoch(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let mut members = Vec::with_capacity(self.count * self.width());
        for episode in 0..self.count as u64 {
            self.draw(&mut keyed(Domain::Episode, seed, epoch, episode), &mut members);
        }
        members
    }
}

/// Draws `taken` different numbers below `count`, in order: the first steps of Fisher and Yates' shuffle from the front,
/// which for i = 0, 1, ... draw j below `count` - i and exchange i and i + j, of a list of which only exchanged places are
/// kept. Panics if `taken` is above `count`.
fn chosen(count: usize, taken: usize, rng: &mut SampleRng) -> Vec<usize> {
    let mut moved: HashMap<usize, usize> = HashMap::new();
    let mut draw = |i: usize| {
        let first = moved.get(&i).copied().unwrap_or(i);
        let j = i + below(rng, (count - i) as u32) as usize;
        moved.insert(j, first).unwrap_or(j)
    };
    (0..taken).map(&mut draw).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const SHAPE: EpisodeShape = EpisodeShape { ways: 2, shots: 1, queries: 2 };

    fn episodes(classes: &[u32], shape: EpisodeShape, count: usize) -> Result<Episodes, TooFew> {
        Episodes::new(shape, count, &Packed::write(classes.iter().copied()).unwrap())
    }

    #[test]
    fn a_set_that_is_too_small_is_an_error() {
        let of = |classes: &[u32]| episodes(classes, SHAPE, 1).map(drop);
        assert_eq!(of(&[0, 0, 0, 0]), Err(TooFew::Classes(1)));
        assert_eq!(of(&[0, 0, 0, 3, 3, 3, 5, 5]), Err(TooFew::Samples { class: 5, found: 2 }));
        // Numbers without samples are no classes.
        assert_eq!(of(&[0, 0, 0, 3, 3, 3]), Ok(()));
    }

    #[test]
    fn every_sample_is_equally_likely() {
        let classes = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
        let members = episodes(&classes, SHAPE, 10_000).unwrap().epoch(4, 0);
        let mut counts = [[0u32; 12]; 6];
        for episode in members.chunks(6) {
            episode.iter().zip(&mut counts).for_each(|(sample, counts)| counts[*sample as usize] += 1);
        }
        assert!(counts.iter().flatten().all(|count| (720..950).contains(count)), "{counts:?}");
    }

    #[test]
    fn episodes_never_change() {
        // Golden values of a second implementation.
        let classes: Vec<u32> = (0..20).map(|sample| sample % 4).collect();
        let sampler = episodes(&classes, SHAPE, 2).unwrap();
        assert_eq!(sampler.epoch(1, 0), [15, 4, 3, 7, 8, 16, 17, 12, 13, 1, 16, 4]);
        assert_eq!(sampler.epoch(1, 1), [10, 3, 2, 14, 7, 19, 19, 10, 7, 11, 2, 6]);
    }

    proptest! {
        #[test]
        fn episodes_have_different_classes_and_samples(
            classes in prop::collection::vec(0u32..6, 1..120), ways in 1usize..4, shots in 1usize..3, queries in 1usize..4,
            seed: u64, epoch: u64,
        ) {
            let shape = EpisodeShape { ways, shots, queries };
            let Ok(sampler) = episodes(&classes, shape, 5) else { return Ok(()) };
            let members = sampler.epoch(seed, epoch);
            prop_assert_eq!(members.len(), 5 * sampler.width());
            for episode in members.chunks(sampler.width()) {
                let mut different = episode.to_vec();
                different.sort_unstable();
                different.dedup();
                prop_assert_eq!(different.len(), episode.len());
                let class = |sample: &u32| classes[*sample as usize];
                let (support, query) = episode.split_at(ways * shots);
                let mut known: Vec<u32> = support.chunks(shots).map(|of| class(&of[0])).collect();
                for (of_class, n) in [(support, shots), (query, queries)] {
                    for (samples, expected) in of_class.chunks(n).zip(&known) {
                        prop_assert!(samples.iter().all(|sample| class(sample) == *expected));
                    }
                }
                known.sort_unstable();
                known.dedup();
                prop_assert_eq!(known.len(), ways);
            }
            let sampling = crate::sampler::Sampling { sampler: Arc::new(sampler.clone()), has_partners: false, mixing: None };
            let places = sampling.epoch(seed, epoch);
            for (at, place) in places.iter().enumerate() {
                let before = places[..at].iter().filter(|other| other.sample == place.sample).count();
                prop_assert_eq!((place.sample, place.repeat as usize), (members[at], before));
            }
            // An episode depends on its number alone.
            let fewer = Episodes { count: 2, ..sampler.clone() };
            prop_assert_eq!(&fewer.epoch(seed, epoch)[..], &members[..2 * sampler.width()]);
        }
    }
}
