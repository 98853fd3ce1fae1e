//! Generated images with a class for each pixel: blobs of class 1 and above on a ground of class 0.
//!
//! A class has a hue and a texture, spread as evenly as in [`super::Generated`]. A blob has its own position,
//! size, shape and brightness; later ones cover earlier ones. An image depends only on (seed, split, sample).

use std::f32::consts::{PI, TAU};

use super::dataset::Field;
use super::generated::{distance, rgb};
use super::generated_set::{GeneratedSample, GeneratedSet, Painter, Split, Target, planes};
use super::pixel_target::PixelTarget;
use super::raster::Labels;
use super::rng::{Domain, SampleRng, below, between};

/// The generated set: the fields `image`, `[3, size, size]`, and `mask`, `[size, size]`.
pub type GeneratedMasks = GeneratedSet<Blobs>;

/// Painter of blobs on a ground; `classes` includes the ground.
#[derive(Debug, Clone)]
pub struct Blobs {
    classes: usize,
}

impl GeneratedMasks {
    /// Makes `samples` images of 2 to 65,536 classes, including the ground, with
    /// [`super::Normalize::default`] and no random changes; pixels of no class are 255.
    pub fn new(classes: usize, samples: usize, image_size: usize, seed: u64, split: Split) -> Self {
        assert!((2..=1 << 16).contains(&classes), "a generated set of masks has a ground and blobs");
        Self::with_painter(Blobs { classes }, samples, image_size, seed, split)
    }
}

impl Painter for Blobs {
    const DOMAIN: Domain = Domain::GeneratedMask;

    fn field(size: usize) -> Field {
        Field::i64("mask", [size, size])
    }

    fn draw(&self, _: usize, size: usize, rng: &mut SampleRng) -> GeneratedSample {
        let ground = Ground::new(rng);
        let blobs: Vec<Blob> = (0..1 + below(rng, 4)).map(|_| Blob::new(self.classes, rng)).collect();
        let noise = between(rng, 0.02, 0.12);
        let mut values = vec![0; size * size];
        let planes = planes(size, noise, rng, |at, x, y| {
            let blob = blobs.iter().rev().find(|blob| blob.covers(x, y));
            values[at] = blob.map_or(0, |blob| blob.class);
            blob.map_or_else(|| ground.color(x, y), |blob| blob.color(x, y))
        });
        let (width, height) = (size as u32, size as u32);
        let target = Target::Pixels(PixelTarget::Classes(Labels { width, height, values }));
        GeneratedSample { planes, target }
    }
}

/// The area without blobs: a smooth slope of a dull colour.
pub(super) struct Ground {
    color: [f32; 3],
    slope: (f32, f32),
}

impl Ground {
    pub(super) fn new(rng: &mut SampleRng) -> Self {
        Self {
            color: rgb(between(rng, 0.0, 1.0), between(rng, 0.0, 0.15), between(rng, 0.3, 0.6)),
            slope: (between(rng, -0.3, 0.3), between(rng, -0.3, 0.3)),
        }
    }

    pub(super) fn color(&self, x: f32, y: f32) -> [f32; 3] {
        let shade = 1.0 + self.slope.0 * (x - 0.5) + self.slope.1 * (y - 0.5);
        self.color.map(|value| value * shade)
    }
}

/// An ellipse with a wavy edge.
pub(super) struct Blob {
    class: u16,
    center: (f32, f32),
    pub(super) radius: f32,
    /// Ratio of length to width, and direction.
    pub(super) stretch: f32,
    angle: f32,
    /// Waves around the edge: number, height, phase.
    edge: (f32, f32, f32),
    color: [f32; 3],
    /// Waves of brightness across the image.
    waves: f32,
}

impl Blob {
    pub(super) fn new(classes: usize, rng: &mut SampleRng) -> Self {
        let class = 1 + below(rng, classes as u32 - 1);
        // Multiples of the golden ratio's inverse are spread evenly on the circle.
        let hue = (f64::from(class) * 0.618_033_988_749_895).fract() as f32;
        Self {
            class: class as u16,
            center: (between(rng, 0.1, 0.9), between(rng, 0.1, 0.9)),
            radius: between(rng, 0.12, 0.3),
            stretch: between(rng, 1.0, 1.8),
            angle: between(rng, 0.0, PI),
            edge: (between(rng, 2.0, 5.0).floor(), between(rng, 0.0, 0.2), between(rng, 0.0, TAU)),
            color: rgb(hue + between(rng, -0.02, 0.02), between(rng, 0.6, 0.9), between(rng, 0.6, 0.95)),
            waves: 2.0 + (class % 5) as f32,
        }
    }

    /// Returns the position in the blob's own directions.
    fn turned(&self, x: f32, y: f32) -> (f32, f32) {
        let (dx, dy) = (x - self.center.0, y - self.center.1);
        let (sin, cos) = self.angle.sin_cos();
        (dx * cos + dy * sin, dy * cos - dx * sin)
    }

    /// Returns the distance from the centre and that of the edge in the same direction.
    pub(super) fn distances(&self, x: f32, y: f32) -> (f32, f32) {
        let (along, across) = self.turned(x, y);
        let (along, across) = (along / self.stretch.sqrt(), across * self.stretch.sqrt());
        let wave = 1.0 + self.edge.1 * (self.edge.0 * across.atan2(along) + self.edge.2).sin();
        (distance(along, across), self.radius * wave)
    }

    fn covers(&self, x: f32, y: f32) -> bool {
        let (distance, edge) = self.distances(x, y);
        distance < edge
    }

    pub(super) fn color(&self, x: f32, y: f32) -> [f32; 3] {
        let (along, _) = self.turned(x, y);
        let shade = 0.85 + 0.15 * (TAU * self.waves * along).sin();
        self.color.map(|value| value * shade)
    }
}

#[cfg(test)]
mod tests;
