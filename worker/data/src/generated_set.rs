//! The common part of generated sets of images.

use rand_chacha::rand_core::Rng;

use super::changes::{Changes, Drawn, Room};
use super::dataset::{Column, Dataset, Field};
use super::error::Result;
use super::fit::Fitter;
use super::normalize::Normalize;
use super::pixel_target::PixelTarget;
use super::raster::{Raster, Values};
use super::rng::{Domain, SampleRng, keyed};

/// Part of a generated set. All have the same classes, but different images.
/// The numbers are keys of the images' generators: they must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    Train = 0,
    Test = 1,
    Val = 2,
}

impl Split {
    pub(super) fn name(self) -> &'static str {
        match self {
            Split::Train => "training",
            Split::Test => "test",
            Split::Val => "validation",
        }
    }
}

/// A source of generated images; each image has its own generator.
pub trait Painter: Send + Sync {
    /// Domain of the images' generators.
    const DOMAIN: Domain;

    /// Returns the field of the target, for images of this size.
    fn field(size: usize) -> Field;

    /// Draws image number `index`, of `size` x `size` pixels.
    fn draw(&self, index: usize, size: usize, rng: &mut SampleRng) -> GeneratedSample;

    /// Describes the image for messages, after the word for its split.
    fn describe(&self, index: usize) -> String {
        format!("image {index}")
    }
}

/// An image before random changes and normalisation.
pub struct GeneratedSample {
    pub(super) planes: Vec<f32>,
    pub(super) target: Target,
}

pub(super) enum Target {
    Class(u32),
    Vector(Vec<f32>),
    Pixels(PixelTarget),
}

/// A generated set of images.
#[derive(Debug, Clone)]
pub struct GeneratedSet<P> {
    pub(super) painter: P,
    samples: usize,
    image_size: usize,
    seed: u64,
    split: Split,
    normalize: Normalize,
    changes: Changes,
    ignore: i64,
    fields: [Field; 2],
}

impl<P: Painter> GeneratedSet<P> {
    pub(super) fn with_painter(
        painter: P,
        samples: usize,
        image_size: usize,
        seed: u64,
        split: Split,
    ) -> Self {
        assert!(image_size > 0, "images have at least one pixel");
        Self {
            painter,
            samples,
            image_size,
            seed,
            split,
            normalize: Normalize::default(),
            changes: Changes::default(),
            ignore: 255,
            fields: [Field::f32("image", [3, image_size, image_size]), P::field(image_size)],
        }
    }

    /// Sets the normalisation.
    pub fn with_normalize(self, normalize: Normalize) -> Self {
        Self { normalize, ..self }
    }

    /// Sets the random changes in training.
    pub fn with_changes(self, changes: Changes) -> Self {
        Self { changes, ..self }
    }

    /// Sets the mask value of pixels outside of the image.
    pub fn with_ignore(self, ignore: i64) -> Self {
        Self { ignore, ..self }
    }

    pub(super) fn check(&self, index: usize) {
        assert!(index < self.samples, "sample {index} of {}", self.samples);
    }
}

impl<P: Painter> Dataset for GeneratedSet<P> {
    fn len(&self) -> usize {
        self.samples
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        let [image, target] = out else {
            panic!("a generated set has two fields, not {}", out.len());
        };
        self.check(index);
        let mut rng = keyed(P::DOMAIN, self.seed, self.split as u64, index as u64);
        let drawing = self.painter.draw(index, self.image_size, &mut rng);
        let side = self.image_size as u32;
        let (size, values) = ((side, side), Values::F32(drawing.planes));
        let drawn = Raster { width: side, height: side, channels: 3, values };
        let choice = random.map_or_else(Drawn::default, |rng| self.changes.draw(rng, size, size));
        let (mut fitter, mut changed) = (Fitter::default(), Room::default());
        let view = match choice.frame {
            Some(frame) => fitter.fit(&drawn, frame)?,
            None => drawn.view(),
        };
        self.normalize.write(choice.changed(view, &mut changed), choice.placement, image.f32());
        match drawing.target {
            Target::Class(class) => target.i64()[0] = i64::from(class),
            Target::Vector(numbers) => target.f32().copy_from_slice(&numbers),
            Target::Pixels(drawn) => {
                let fitted = choice.frame.map(|frame| drawn.fit(frame));
                choice.write(&fitted.unwrap_or(drawn), self.ignore, target);
            }
        }
        Ok(())
    }

    fn describe(&self, index: usize) -> String {
        format!("generated {} {}", self.split.name(), self.painter.describe(index))
    }
}

/// Draws the three planes of an image. `color` returns a pixel's colour by its number and its position, from
/// 0 to 1, and `noise` is the strength of the added noise.
pub(super) fn planes(
    size: usize,
    noise: f32,
    rng: &mut SampleRng,
    mut color: impl FnMut(usize, f32, f32) -> [f32; 3],
) -> Vec<f32> {
    let mut planes = vec![0.0; 3 * size * size];
    let place = |pixel: usize| (pixel as f32 + 0.5) / size as f32;
    for y in 0..size {
        for x in 0..size {
            let at = y * size + x;
            let color = color(at, place(x), place(y));
            let bytes = rng.next_u32().to_le_bytes();
            for c in 0..3 {
                // The sum of two bytes: triangular from -1 to 1; neighbouring channels share a byte.
                let grain = (f32::from(bytes[c]) + f32::from(bytes[c + 1])) / 255.0 - 1.0;
                planes[c * size * size + at] = (color[c] + noise * grain).clamp(0.0, 1.0);
            }
        }
    }
    planes
}
