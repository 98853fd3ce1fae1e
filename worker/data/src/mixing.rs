//! How much of its partner a mixed sample has: a function of the seed, the step and the sample's place in the step alone.

use std::ops::Range;

use dtrain_recipe::{Mix, MixBy, mixes};

use super::rng::{Domain, SampleRng, inside, keyed, symmetric_beta};

/// How the samples of a training are mixed with their partners.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixing {
    /// The part of the samples that each mixes.
    mixes: Vec<(f64, Mix)>,
    by: MixBy,
}

/// How a sample is mixed with its partner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Blend {
    /// The part of the sample; its partner has the rest.
    pub share: f64,
    pub form: Form,
}

/// How the images of a sample and its partner become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// Their weighted mean.
    Mean,
    /// A rectangle of the partner, with this middle as parts of height and width.
    Rectangle([f64; 2]),
}

impl Mixing {
    /// Returns how the samples are mixed; None if they are not.
    pub fn of(mix: &[Mix], by: MixBy) -> Option<Self> {
        let mixes: Vec<_> = mixes::shares(mix).into_iter().zip(mix.iter().cloned()).collect();
        (!mixes.is_empty()).then_some(Self { mixes, by })
    }

    /// Returns how each of the samples of a step is mixed; None for one that is not. Steps count over the run.
    pub fn step(&self, samples: usize, seed: u64, step: u64) -> Vec<Option<Blend>> {
        /// No place has this number.
        const WHOLE: u64 = 1 << 32;
        let draw = |place| self.draw(&mut keyed(Domain::Mix, seed, step, place));
        match self.by {
            MixBy::Sample => (0..samples as u64).map(draw).collect(),
            MixBy::Step => vec![draw(WHOLE); samples],
        }
    }

    /// Draws always in the same order: which mix, the share, and for a rectangle its middle.
    fn draw(&self, rng: &mut SampleRng) -> Option<Blend> {
        let mut chosen = inside(rng);
        let mix = self.mixes.iter().find_map(|(part, mix)| {
            chosen -= part;
            (chosen < 0.0).then_some(mix)
        })?;
        Some(match mix {
            Mix::Mixup(mixup) => Blend { share: symmetric_beta(rng, mixup.alpha), form: Form::Mean },
            Mix::Cutmix(cutmix) => Blend {
                share: symmetric_beta(rng, cutmix.alpha),
                form: Form::Rectangle([inside(rng), inside(rng)]),
            },
        })
    }
}

/// Returns the rows and columns of a rectangle with this part of an image's area, cut at its edges, and the part of the image that
/// is outside of it.
pub(super) fn rectangle(area: f64, middle: [f64; 2], size: [usize; 2]) -> ([Range<usize>; 2], f64) {
    let side = |at: usize| {
        let side = (size[at] as f64 * area.max(0.0).sqrt()) as usize;
        let middle = (middle[at] * size[at] as f64) as usize;
        middle.saturating_sub(side / 2)..(middle + side.div_ceil(2)).min(size[at])
    };
    let sides = [side(0), side(1)];
    let inside = sides[0].len() * sides[1].len();
    (sides, 1.0 - inside as f64 / (size[0] * size[1]).max(1) as f64)
}

/// Replaces values by `share` of them and the rest of the partner's.
pub(super) fn mean(own: &mut [f32], partner: &[f32], share: f32) {
    let rest = 1.0 - share;
    own.iter_mut().zip(partner).for_each(|(own, partner)| *own = *own * share + *partner * rest);
}

/// Copies a rectangle of rows and columns of each plane of this size.
pub(super) fn paste<T: Copy>(
    own: &mut [T],
    partner: &[T],
    [rows, columns]: &[Range<usize>; 2],
    [height, width]: [usize; 2],
) {
    for (own, partner) in own.chunks_mut(height * width).zip(partner.chunks(height * width)) {
        for row in rows.clone() {
            let range = row * width + columns.start..row * width + columns.end;
            own[range.clone()].copy_from_slice(&partner[range]);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_recipe::mixes::{Cutmix, Mixup};
    use proptest::prelude::*;

    use super::*;

    fn both(mixup: Option<f64>, cutmix: Option<f64>) -> [Mix; 2] {
        [
            Mix::Mixup(Mixup { share: mixup, ..Mixup::default() }),
            Mix::Cutmix(Cutmix { share: cutmix, ..Cutmix::default() }),
        ]
    }

    #[test]
    fn each_mix_has_its_part_of_the_samples() {
        const SAMPLES: usize = 40_000;
        for (mixup, cutmix, expected) in
            [(None, None, [0.5, 0.5]), (Some(0.3), None, [0.3, 0.7]), (Some(0.2), Some(0.5), [0.2, 0.5])]
        {
            let drawn = Mixing::of(&both(mixup, cutmix), MixBy::Sample).unwrap().step(SAMPLES, 3, 5);
            let part = |is: fn(&Form) -> bool| {
                drawn.iter().flatten().filter(|blend| is(&blend.form)).count() as f64 / SAMPLES as f64
            };
            let found = [part(|form| *form == Form::Mean), part(|form| *form != Form::Mean)];
            assert!(found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 0.01), "{found:?}");
        }
        assert_eq!(Mixing::of(&[], MixBy::Sample), None);
    }

    #[test]
    fn draws_never_change() {
        let drawn = Mixing::of(&both(None, None), MixBy::Sample).unwrap().step(4, 1, 2);
        let found: Vec<_> = drawn.iter().flatten().map(|blend| (blend.share, blend.form)).collect();
        // Golden values of a second implementation: a change here changes every user's run and every resume.
        assert_eq!(format!("{found:.6?}"), GOLDEN);
    }

    const GOLDEN: &str =
        "[(0.603909, Rectangle([0.495512, 0.469320])), (0.990558, Mean), (0.000142, Mean), (0.008661, Mean)]";

    #[test]
    fn a_step_draws_once_if_the_recipe_says_so() {
        let drawn = |step| Mixing::of(&both(None, None), MixBy::Step).unwrap().step(5, 1, step);
        assert!(drawn(0).iter().all(|blend| *blend == drawn(0)[0]));
        assert_ne!(drawn(0)[0], drawn(1)[0]);
        let by_sample = Mixing::of(&both(None, None), MixBy::Sample).unwrap().step(5, 1, 0);
        assert!(by_sample.windows(2).all(|pair| pair[0] != pair[1]));
    }

    proptest! {
        #[test]
        fn a_rectangle_is_inside_of_its_image_and_leaves_its_share(
            area in 0f64..1.0, y in 0f64..1.0, x in 0f64..1.0, height in 1usize..40, width in 1usize..40,
        ) {
            let ([rows, columns], share) = rectangle(area, [y, x], [height, width]);
            prop_assert!(rows.start <= rows.end && rows.end <= height);
            prop_assert!(columns.start <= columns.end && columns.end <= width);
            let left = (height * width - rows.len() * columns.len()) as f64 / (height * width) as f64;
            prop_assert!((share - left).abs() < 1e-12);
            prop_assert!(1.0 - share <= area + 1e-12);
        }
    }
}
