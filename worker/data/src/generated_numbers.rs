//! Generated images with numbers to learn: the shape of a blob, or the height of each pixel.
//!
//! Grounds and blobs are those of [`super::GeneratedMasks`]. An image depends only on (seed, split, sample).

use super::dataset::Field;
use super::generated_masks::{Blob, Ground};
use super::generated_set::{GeneratedSample, GeneratedSet, Painter, Split, Target, planes};
use super::pixel_target::PixelTarget;
use super::raster::Labels;
use super::rng::{Domain, SampleRng, below, between};

/// The names of the numbers of [`GeneratedVectors`].
pub const NUMBERS: [&str; 2] = ["radius", "stretch"];

/// Hues and textures of blobs, as the classes of masks.
const KINDS: usize = 8;

/// One blob in each image, and its [`NUMBERS`]: the fields `image`, `[3, size, size]`, and `targets`, `[2]`.
pub type GeneratedVectors = GeneratedSet<Sizes>;

/// Domes on a ground of height 0: the fields `image`, `[3, size, size]`, and `map`, `[size, size]`. The height
/// of a dome is its radius, from 0.12 to 0.3.
pub type GeneratedMaps = GeneratedSet<Domes>;

/// Painter of one blob.
#[derive(Debug, Clone)]
pub struct Sizes;

/// Painter of domes.
#[derive(Debug, Clone)]
pub struct Domes;

impl GeneratedVectors {
    /// Makes `samples` images, with [`super::Normalize::default`] and no random changes.
    pub fn new(samples: usize, image_size: usize, seed: u64, split: Split) -> Self {
        Self::with_painter(Sizes, samples, image_size, seed, split)
    }
}

impl GeneratedMaps {
    /// Makes `samples` images, with [`super::Normalize::default`] and no random changes.
    pub fn new(samples: usize, image_size: usize, seed: u64, split: Split) -> Self {
        Self::with_painter(Domes, samples, image_size, seed, split)
    }
}

impl Painter for Sizes {
    const DOMAIN: Domain = Domain::GeneratedVector;

    fn field(_: usize) -> Field {
        Field::f32("targets", [NUMBERS.len()])
    }

    fn draw(&self, _: usize, size: usize, rng: &mut SampleRng) -> GeneratedSample {
        let (ground, blob) = (Ground::new(rng), Blob::new(KINDS, rng));
        let noise = between(rng, 0.02, 0.12);
        let planes = planes(size, noise, rng, |_, x, y| match height(&blob, x, y) {
            Some(_) => blob.color(x, y),
            None => ground.color(x, y),
        });
        GeneratedSample { planes, target: Target::Vector(vec![blob.radius, blob.stretch]) }
    }
}

impl Painter for Domes {
    const DOMAIN: Domain = Domain::GeneratedMap;

    fn field(size: usize) -> Field {
        Field::f32("map", [size, size])
    }

    fn draw(&self, _: usize, size: usize, rng: &mut SampleRng) -> GeneratedSample {
        let ground = Ground::new(rng);
        let blobs: Vec<Blob> = (0..1 + below(rng, 4)).map(|_| Blob::new(KINDS, rng)).collect();
        let noise = between(rng, 0.02, 0.12);
        let mut values = vec![0.0; size * size];
        let planes = planes(size, noise, rng, |at, x, y| {
            let heights = blobs.iter().filter_map(|blob| Some((height(blob, x, y)?, blob)));
            let Some((height, blob)) = heights.max_by(|a, b| a.0.total_cmp(&b.0)) else {
                return ground.color(x, y);
            };
            values[at] = height;
            // Light from above: the slopes are darker.
            let shade = 0.4 + 0.6 * height / blob.radius;
            blob.color(x, y).map(|value| value * shade)
        });
        let (width, height) = (size as u32, size as u32);
        let target = Target::Pixels(PixelTarget::Numbers(Labels { width, height, values }));
        GeneratedSample { planes, target }
    }
}

/// Returns the height of a blob at a place that it covers.
fn height(blob: &Blob, x: f32, y: f32) -> Option<f32> {
    let (distance, edge) = blob.distances(x, y);
    (distance < edge).then(|| blob.radius * (1.0 - (distance / edge).powi(2)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::changes::Changes;
    use dtrain_recipe::Augment;

    use super::*;
    use crate::dataset::{Dataset, load_one};
    use crate::rng::keyed;

    #[test]
    fn numbers_belong_to_their_image() {
        let set = GeneratedVectors::new(50, 16, 3, Split::Train);
        assert_eq!(set.fields()[1], Field::f32("targets", [2]));
        let numbers = |index| load_one(&set, index, None).unwrap()[1].as_f32().unwrap().to_vec();
        let all: Vec<_> = (0..50).map(numbers).collect();
        assert!(all.iter().all(|it| (0.12..0.3).contains(&it[0]) && (1.0..1.8).contains(&it[1])));
        let larger = all.iter().filter(|it| it[0] > 0.21).count();
        assert!((10..40).contains(&larger), "{larger}");
        let test = GeneratedVectors::new(50, 16, 3, Split::Test);
        assert_ne!(load_one(&test, 0, None).unwrap()[1].as_f32().unwrap().to_vec(), all[0]);
    }

    #[test]
    fn a_map_goes_where_its_image_goes() {
        let set = |augment: Augment| {
            GeneratedMaps::new(9, 24, 3, Split::Train).with_changes(Changes::new(&augment.changes()))
        };
        let load = |augment, index, random: Option<u64>| {
            let mut rng = random.map(|sample| keyed(Domain::Augment, 1, 0, sample));
            let columns = load_one(&set(augment), index, rng.as_mut()).unwrap();
            [0, 1].map(|field: usize| columns[field].as_f32().unwrap().to_vec())
        };
        for index in 0..9 {
            let [image, map] = load(Augment::None, index, None);
            assert!(map.iter().all(|height| (0.0..0.3).contains(height)));
            assert!(map.iter().any(|height| *height > 0.05));
            let mut flipped = 0;
            for sample in 0..8 {
                let [other, heights] = load(Augment::Flip, index, Some(sample));
                if other != image {
                    let mirror = |row: &[f32]| row.iter().rev().copied().collect::<Vec<_>>();
                    assert_eq!(heights, map.chunks(24).flat_map(mirror).collect::<Vec<_>>());
                    flipped += 1;
                }
            }
            assert!((1..8).contains(&flipped), "{flipped}");
        }
        // Outside of the image are no numbers.
        let moved = (0..20).flat_map(|sample| load(Augment::CropFlip, 0, Some(sample))[1].clone());
        assert!(moved.clone().any(f32::is_nan) && moved.clone().any(|height| height > 0.0));
    }
}
