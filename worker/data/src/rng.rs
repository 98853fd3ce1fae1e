//! Random numbers that depend only on their purpose.
//!
//! Every use has its own generator, keyed by a domain and up to three numbers (seed, epoch, sample). The key
//! is the ChaCha key itself, so different keys give unrelated streams. No stream depends on draws of another
//! thread, rank or earlier sample. The draws are written out here and not taken from `rand`, whose algorithms
//! may change between versions: the order of training must not.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The generator of one sample's random choices. Eight rounds pass all statistical tests and are the fastest.
pub type SampleRng = ChaCha8Rng;

/// The purpose of a stream. The tag is part of the key; changing one changes every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// The permutation of an epoch: (seed, epoch, 0).
    Order,
    /// The partners of a step's samples: (seed, step, 0).
    Pairs,
    /// How a sample is mixed with its partner: (seed, step, place in the step), and for all samples of a step (seed, step, 2^32).
    Mix,
    /// The order of an epoch with as many samples of each class: (seed, epoch, 0).
    Balanced,
    /// The order of an epoch whose steps have samples of similar lengths: (seed, epoch, 0).
    Buckets,
    /// The order of an epoch with sources by weight: (seed, epoch, 0).
    Mixture,
    /// One episode of an epoch: (seed, epoch, episode).
    Episode,
    /// The augmentation of one sample in one epoch: (seed, epoch, sample); a sample that came r times before in the epoch has
    /// r x 2^32 more.
    Augment,
    /// The samples in place of one that cannot be loaded: (seed, epoch, sample).
    StandIn,
    /// The content of one generated image: (seed, split, sample).
    GeneratedImage,
    /// The appearance of the generated classes: (seed, 0, 0).
    GeneratedClasses,
    /// The content of one generated image with a mask: (seed, split, sample).
    GeneratedMask,
    /// The content of one generated image with numbers: (seed, split, sample).
    GeneratedVector,
    /// The content of one generated image with a map: (seed, split, sample).
    GeneratedMap,
    /// A generated text: (seed, 0, 0).
    GeneratedText,
    /// A user's data set: any numbers.
    User,
    /// The seed of torch's generators for a micro-batch: (seed, step, its first sample in the step).
    Torch,
    /// The key of random numbers by sample, such as dropout: (seed, step, 0), and for evaluations (seed, 0, 1).
    BySample,
    /// The seed of torch's generators for a batch of an evaluation: (seed, its first sample, 0).
    Evaluate,
}

impl Domain {
    fn tag(self) -> &'static [u8; 8] {
        match self {
            Domain::Order => b"order   ",
            Domain::Pairs => b"pairs   ",
            Domain::Mix => b"mix     ",
            Domain::Balanced => b"balanced",
            Domain::Buckets => b"buckets ",
            Domain::Mixture => b"mixture ",
            Domain::Episode => b"episode ",
            Domain::Augment => b"augment ",
            Domain::StandIn => b"stand-in",
            Domain::GeneratedImage => b"gen-img ",
            Domain::GeneratedClasses => b"gen-cls ",
            Domain::GeneratedMask => b"gen-msk ",
            Domain::GeneratedVector => b"gen-vec ",
            Domain::GeneratedMap => b"gen-map ",
            Domain::GeneratedText => b"gen-txt ",
            Domain::User => b"own     ",
            Domain::Torch => b"torch   ",
            Domain::BySample => b"bysample",
            Domain::Evaluate => b"evaluate",
        }
    }
}

/// Makes a generator with key = tag, a, b, c: 8 bytes each, numbers little-endian.
pub fn keyed(domain: Domain, a: u64, b: u64, c: u64) -> SampleRng {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(domain.tag());
    key[8..16].copy_from_slice(&a.to_le_bytes());
    key[16..24].copy_from_slice(&b.to_le_bytes());
    key[24..].copy_from_slice(&c.to_le_bytes());
    ChaCha8Rng::from_seed(key)
}

/// Draws a number in `0..bound`, each equally likely.
///
/// The high half of `x * bound` for a 32-bit draw x, drawn again while the low half is below `2^32 mod bound`
/// (Lemire's method without bias). Panics if `bound` is 0.
pub fn below(rng: &mut SampleRng, bound: u32) -> u32 {
    let reject_under = bound.wrapping_neg() % bound;
    loop {
        let product = u64::from(rng.next_u32()) * u64::from(bound);
        // The truncation keeps the low half on purpose.
        if product as u32 >= reject_under {
            return (product >> 32) as u32;
        }
    }
}

/// Draws a number in `[0, 1)` with 24 random bits.
pub fn unit(rng: &mut SampleRng) -> f32 {
    (rng.next_u32() >> 8) as f32 / (1 << 24) as f32
}

/// Draws a number in `[low, high)`.
pub fn between(rng: &mut SampleRng, low: f32, high: f32) -> f32 {
    low + (high - low) * unit(rng)
}

/// Returns true half of the time.
pub fn coin(rng: &mut SampleRng) -> bool {
    rng.next_u32() >> 31 == 1
}

/// Draws a number inside (0, 1), each of the 2^52 midpoints equally likely.
pub fn inside(rng: &mut SampleRng) -> f64 {
    ((rng.next_u64() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// Draws from Beta(alpha, alpha), for alpha above 0.
///
/// By two numbers and no rejection: sqrt(2 alpha (u^(-1/alpha) - 1)) cos(2 pi v) has Student's law of 2 alpha degrees (Bailey 1994,
/// Mathematics of Computation 62), and t / sqrt(2 alpha + t^2) of such a t is 2 b - 1.
pub fn symmetric_beta(rng: &mut SampleRng, alpha: f64) -> f64 {
    let power = inside(rng).powf(1.0 / alpha);
    let cosine = (std::f64::consts::TAU * inside(rng)).cos();
    let rest = 1.0 - power;
    // Rounding may go beyond the ends.
    (0.5 + 0.5 * cosine * (rest / (power + cosine * cosine * rest)).sqrt()).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_always_gives_the_same_stream() {
        // Computed with a second implementation of ChaCha with 8 rounds.
        let mut rng = keyed(Domain::Order, 1, 2, 3);
        let drawn: Vec<u32> = (0..4).map(|_| rng.next_u32()).collect();
        assert_eq!(drawn, [1_651_654_700, 1_472_232_845, 3_092_221_050, 3_431_881_136]);
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let first = |domain, a, b, c| keyed(domain, a, b, c).next_u64();
        let draws = [
            first(Domain::Order, 1, 2, 3),
            first(Domain::Augment, 1, 2, 3),
            first(Domain::GeneratedImage, 1, 2, 3),
            first(Domain::GeneratedClasses, 1, 2, 3),
            first(Domain::GeneratedMask, 1, 2, 3),
            first(Domain::GeneratedVector, 1, 2, 3),
            first(Domain::GeneratedMap, 1, 2, 3),
            first(Domain::GeneratedText, 1, 2, 3),
            first(Domain::Order, 0, 2, 3),
            first(Domain::Order, 1, 0, 3),
            first(Domain::Order, 1, 2, 0),
            first(Domain::Order, 2, 1, 3),
        ];
        let distinct: std::collections::BTreeSet<u64> = draws.into_iter().collect();
        assert_eq!(distinct.len(), draws.len());
    }

    #[test]
    fn bounded_draws_are_even() {
        let mut rng = keyed(Domain::Order, 7, 0, 0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[below(&mut rng, 7) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
        assert_eq!(below(&mut rng, 1), 0);
    }

    #[test]
    fn unit_stays_below_one_and_the_coin_is_fair() {
        let mut rng = keyed(Domain::Augment, 7, 0, 0);
        assert!((0..100_000).all(|_| (0.0..1.0).contains(&unit(&mut rng))));
        let heads = (0..10_000).filter(|_| coin(&mut rng)).count();
        assert!((4_800..5_200).contains(&heads), "{heads}");
    }

    /// Mean, variance and the parts below some numbers, which SciPy 1.17 computes by `scipy.stats.beta.cdf`.
    #[test]
    fn the_beta_law_is_that_of_its_parameter() {
        const DRAWS: usize = 100_000;
        for (alpha, parts) in [
            (0.1, [(0.01, 0.320_308), (0.25, 0.451_958)]),
            (0.2, [(0.01, 0.209_778), (0.25, 0.414_056)]),
            (0.5, [(0.01, 0.063_769), (0.25, 0.333_333)]),
            (1.0, [(0.01, 0.01), (0.25, 0.25)]),
            (4.0, [(0.01, 0.0), (0.25, 0.070_557)]),
        ] {
            let mut rng = keyed(Domain::Mix, 7, 1, 2);
            let drawn: Vec<f64> = (0..DRAWS).map(|_| symmetric_beta(&mut rng, alpha)).collect();
            assert!(drawn.iter().all(|one| (0.0..=1.0).contains(one)));
            let mean = drawn.iter().sum::<f64>() / DRAWS as f64;
            let variance = drawn.iter().map(|one| (one - 0.5).powi(2)).sum::<f64>() / DRAWS as f64;
            assert!((mean - 0.5).abs() < 0.006, "{alpha}: {mean}");
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((variance / expected - 1.0).abs() < 0.02, "{alpha}: {variance} {expected}");
            for (bound, expected) in parts {
                let part = drawn.iter().filter(|one| **one < bound).count() as f64 / DRAWS as f64;
                assert!((part - expected).abs() < 0.006, "{alpha} below {bound}: {part} {expected}");
            }
        }
        // Tiny and huge parameters overflow nothing.
        for alpha in [1e-6, 1e6] {
            let mut rng = keyed(Domain::Mix, 7, 1, 2);
            assert!((0..1000).all(|_| (0.0..=1.0).contains(&symmetric_beta(&mut rng, alpha))));
        }
    }
}
