//! A generated set of images, for training without data.
//!
//! A class is a kind of pattern (stripes, checks, rings, spots) with a direction, a coarseness and two
//! colours. The classes' parameters follow a low-discrepancy sequence: a few classes are far apart and a
//! thousand are still distinct. Each image has its own phase, position, contrast, brightness, small
//! deviations of all parameters, a faint second pattern and noise. So a network starts near chance and learns
//! within a few epochs.
//!
//! An image depends only on (seed, split, sample) and its class, which is the sample's number modulo the
//! number of classes. At another size it is the same picture with different noise. Trigonometric functions
//! come from the platform's math library, so two kinds of machine may differ in the last bit.

use std::f32::consts::{PI, TAU};

use super::dataset::Field;
use super::generated_set::{GeneratedSample, GeneratedSet, Painter, Split, Target, planes};
use super::rng::{Domain, SampleRng, between, keyed, unit};

/// The generated set: the fields `image`, `[3, size, size]`, and `label`, a single number.
pub type Generated = GeneratedSet<Patterns>;

/// Painter of patterns, with the appearance of each class.
#[derive(Debug, Clone)]
pub struct Patterns {
    classes: Vec<Class>,
}

impl Generated {
    /// Makes `samples` images of `classes` classes, with [`super::Normalize::default`] and no random changes.
    pub fn new(classes: usize, samples: usize, image_size: usize, seed: u64, split: Split) -> Self {
        assert!(classes > 0, "a generated set has classes");
        let mut rng = keyed(Domain::GeneratedClasses, seed, 0, 0);
        let shifts = std::array::from_fn(|_| unit(&mut rng));
        let classes = (0..classes).map(|number| Class::new(number, &shifts)).collect();
        Self::with_painter(Patterns { classes }, samples, image_size, seed, split)
    }

    /// Returns the class of a sample. Panics if there is no such sample.
    pub fn label(&self, index: usize) -> u32 {
        self.check(index);
        self.painter.label(index)
    }
}

impl Patterns {
    fn label(&self, index: usize) -> u32 {
        (index % self.classes.len()) as u32
    }
}

impl Painter for Patterns {
    const DOMAIN: Domain = Domain::GeneratedImage;

    fn field(_: usize) -> Field {
        Field::i64("label", [])
    }

    fn draw(&self, index: usize, size: usize, rng: &mut SampleRng) -> GeneratedSample {
        let label = self.label(index);
        let picture = Picture::new(&self.classes[label as usize], rng);
        GeneratedSample {
            planes: planes(size, picture.noise, rng, |_, x, y| picture.color(x, y)),
            target: Target::Class(label),
        }
    }

    fn describe(&self, index: usize) -> String {
        format!("image {index} (class {})", self.label(index))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stripes,
    Checks,
    Rings,
    Spots,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Class {
    kind: Kind,
    angle: f32,
    /// Waves, rings or spots across the image.
    waves: f32,
    /// Hues of the pattern and of the ground, from 0 to 1 on the colour circle.
    hue: f32,
    ground_hue: f32,
}

impl Class {
    /// Waves across the image: at 32 pixels the finest is still about 6 pixels long.
    const WAVES: (f32, f32) = (1.5, 5.5);

    fn new(number: usize, shifts: &[f32; 4]) -> Self {
        // Inverse powers of the root of x^5 = x + 1: the most even known spread in four dimensions.
        const STEPS: [f64; 4] =
            [0.856_674_883_854_503, 0.733_891_856_627_126, 0.628_706_721_069_447, 0.538_597_254_859_107];
        let [angle, waves, hue, ground] = std::array::from_fn(|axis| {
            (number as f64 * STEPS[axis] + f64::from(shifts[axis])).fract() as f32
        });
        let kind = [Kind::Stripes, Kind::Checks, Kind::Rings, Kind::Spots][number % 4];
        let (fewest, most) = Self::WAVES;
        Self {
            kind,
            angle: angle * PI,
            waves: fewest * (most / fewest).powf(waves),
            hue,
            // Never the hue of the pattern itself.
            ground_hue: hue + 0.25 + 0.5 * ground,
        }
    }
}

/// One image: the class's parameters with this image's deviations.
struct Picture {
    kind: Kind,
    cos: f32,
    sin: f32,
    waves: f32,
    phase: (f32, f32),
    center: (f32, f32),
    contrast: f32,
    pattern: [f32; 3],
    ground: [f32; 3],
    /// A faint wave without information about the class: its wave vector, phase and strength.
    veil: (f32, f32, f32, f32),
    noise: f32,
}

impl Picture {
    fn new(class: &Class, rng: &mut SampleRng) -> Self {
        let angle = class.angle + between(rng, -0.12, 0.12);
        let brightness = between(rng, 0.55, 0.95);
        let veil_angle = between(rng, 0.0, TAU);
        let veil_waves = between(rng, 1.0, 6.0) * TAU;
        Self {
            kind: class.kind,
            cos: angle.cos(),
            sin: angle.sin(),
            waves: class.waves * between(rng, 0.92, 1.08),
            phase: (between(rng, 0.0, TAU), between(rng, 0.0, TAU)),
            center: (between(rng, 0.2, 0.8), between(rng, 0.2, 0.8)),
            contrast: between(rng, 0.35, 1.0),
            pattern: rgb(class.hue + between(rng, -0.08, 0.08), between(rng, 0.2, 0.7), brightness),
            ground: rgb(
                class.ground_hue + between(rng, -0.08, 0.08),
                between(rng, 0.1, 0.6),
                brightness * between(rng, 0.4, 1.0),
            ),
            veil: (
                veil_angle.cos() * veil_waves,
                veil_angle.sin() * veil_waves,
                between(rng, 0.0, TAU),
                between(rng, 0.0, 0.12),
            ),
            noise: between(rng, 0.05, 0.25),
        }
    }

    /// Returns the colour at a position, before noise; coordinates are from 0 to 1.
    fn color(&self, x: f32, y: f32) -> [f32; 3] {
        let (dx, dy) = (x - self.center.0, y - self.center.1);
        let along = TAU * self.waves * (dx * self.cos + dy * self.sin);
        let across = TAU * self.waves * (dy * self.cos - dx * self.sin);
        // From -1 to 1.
        let strength = match self.kind {
            Kind::Stripes => (along + self.phase.0).sin(),
            Kind::Checks => (along + self.phase.0).sin() * (across + self.phase.1).sin(),
            // Ellipses, so that rings have a direction too.
            Kind::Rings => (distance(along, 0.6 * across) + self.phase.0).sin(),
            Kind::Spots => {
                let (u, v) = ((0.5 * along + self.phase.0).sin(), (0.9 * across + self.phase.1).sin());
                2.0 * (1.0 - 1.4 * (u * u + v * v)).max(0.0) - 1.0
            }
        };
        let share = 0.5 + 0.5 * self.contrast * strength;
        let veil = self.veil.3 * (self.veil.0 * x + self.veil.1 * y + self.veil.2).sin();
        std::array::from_fn(|c| self.ground[c] + share * (self.pattern[c] - self.ground[c]) + veil)
    }
}

/// Returns the length of the vector. glibc gave `hypotf` a new version, so that a program with it needs glibc 2.35.
pub(super) fn distance(x: f32, y: f32) -> f32 {
    let (x, y) = (f64::from(x), f64::from(y));
    (x * x + y * y).sqrt() as f32
}

/// Converts hue (only its fraction counts), saturation and value, each from 0 to 1, to RGB.
pub(super) fn rgb(hue: f32, saturation: f32, value: f32) -> [f32; 3] {
    std::array::from_fn(|c| {
        // Each channel is full within a sixth of the circle around its hue and fades over the next sixth.
        let distance = (hue - c as f32 / 3.0 + 0.5).rem_euclid(1.0) - 0.5;
        let amount = (2.0 - 6.0 * distance.abs()).clamp(0.0, 1.0);
        value * (1.0 - saturation * (1.0 - amount))
    })
}

#[cfg(test)]
mod tests;
