//! Random changes to training images, in the order of the recipe; each file has one.
//!
//! A change draws from the sample's own generator, a function of (seed, epoch, sample), once for all files of the sample.
//! Geometry moves an image, its mask and its map alike. Colour changes images alone.

// A new file needs no line here.
automod::dir!("src/changes");

use std::fmt;
use std::sync::Arc;

use dtrain_recipe::{Change as Settings, each_change};

use self::moves::Move;
use super::dataset::Column;
use super::error::{Result, SampleError};
use super::fit::Frame;
use super::pixel_target::PixelTarget;
use super::plane::{Placement, Plane};
use super::raster::{Labels, Raster, View};
use super::rng::{SampleRng, unit};

/// A change with its settings.
trait Change: fmt::Debug + Send + Sync {
    /// Draws once for a sample, and adds the choice to `drawn`.
    fn draw(&self, rng: &mut SampleRng, sizes: Sizes, drawn: &mut Drawn);

    /// Returns whether it chooses a part of the decoded image, not only of the resized one.
    fn needs_decoded(&self) -> bool {
        false
    }

    /// Returns whether it changes square images alone.
    fn needs_square(&self) -> bool {
        false
    }
}

/// A drawn change of an image's values.
trait Colour: fmt::Debug + Send + Sync {
    /// Changes an image that has the network's size.
    fn change(&self, image: &mut Raster);

    /// Returns whether each pixel changes by its own value and black stays black. Then a shift before it may come after it, while
    /// the image is written.
    fn commutes_with_shifts(&self) -> bool {
        false
    }
}

/// Sizes of an image, (width, height).
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// The decoded image.
    source: (u32, u32),
    target: (u32, u32),
}

/// A drawn change of the resized image.
#[derive(Debug, Clone)]
enum Step {
    Move(Move),
    Colour(Arc<dyn Colour>),
}

/// What was drawn for a sample.
#[derive(Debug, Clone, Default)]
pub(super) struct Drawn {
    /// The rectangle of the decoded image to use instead of [`Frame::new`]'s.
    pub(super) frame: Option<Frame>,
    /// The place of [`Frame::new`]'s part in the scaled image, from left and top, in place of its centre: from 0 to below 1.
    pub(super) place: Option<[f64; 2]>,
    steps: Vec<Step>,
    /// A shift and a mirror image after the steps. They cost nothing while the image is written.
    pub(super) placement: Placement,
}

/// Memory for changes, with old content.
#[derive(Debug, Default)]
pub(super) struct Room {
    image: Raster,
    moves: moves::Room,
}

impl Room {
    /// Returns the memory held, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.image.values.held_bytes() + self.moves.held_bytes()
    }
}

impl Drawn {
    /// Returns the same choices with another rectangle.
    pub(super) fn with_frame(&self, frame: Option<Frame>) -> Self {
        Self { frame, ..self.clone() }
    }

    /// Adds a change of colours.
    fn colour(&mut self, colour: impl Colour + 'static) {
        if !colour.commutes_with_shifts() {
            self.settle();
        }
        self.steps.push(Step::Colour(Arc::new(colour)));
    }

    /// Adds a change of places.
    fn shift(&mut self, by: Move) {
        self.settle();
        self.steps.push(Step::Move(by));
    }

    /// Makes the placement a step, before another step.
    fn settle(&mut self) {
        let placement = std::mem::take(&mut self.placement);
        if placement != Placement::default() {
            self.steps.push(Step::Move(Move::Place(placement)));
        }
    }

    fn moves(&self) -> impl Iterator<Item = &Move> {
        self.steps.iter().filter_map(|step| match step {
            Step::Move(by) => Some(by),
            Step::Colour(_) => None,
        })
    }

    /// Returns the image after the steps, in `room` if there are any. The placement remains.
    pub(super) fn changed<'a>(&self, image: View<'a>, room: &'a mut Room) -> View<'a> {
        if self.steps.is_empty() {
            return image;
        }
        image.copy_to(&mut room.image);
        for step in &self.steps {
            match step {
                Step::Move(by) => by.image(&mut room.image, &mut room.moves),
                Step::Colour(colour) => colour.change(&mut room.image),
            }
        }
        room.image.view()
    }

    /// Writes a resized mask or map as its image moved; outside of it are `outside` and no numbers.
    pub(super) fn write(&self, target: &PixelTarget, outside: i64, out: &mut Column) {
        match target {
            _ if self.moves().next().is_none() => target.write(self.placement, outside, out),
            PixelTarget::Classes(labels) => self.write_labels(labels, outside, out.i64()),
            PixelTarget::Numbers(labels) => self.write_labels(labels, f32::NAN, out.f32()),
        }
    }

    fn write_labels<T: Copy, U: Copy + From<T>>(&self, labels: &Labels<T>, outside: U, out: &mut [U]) {
        let (width, height) = (labels.width as usize, labels.height as usize);
        let mut values: Vec<U> = labels.values.iter().map(|&value| U::from(value)).collect();
        let mut moved = values.clone();
        for by in self.moves() {
            by.nearest(&values, (width, height), outside, &mut moved);
            std::mem::swap(&mut values, &mut moved);
        }
        Plane { values: &values, width, height, row: width, step: 1 }.write(
            self.placement,
            outside,
            out,
            |value| value,
        );
    }
}

/// Draws whether a change happens that this share of the images gets.
fn happens(rng: &mut SampleRng, share: f64) -> bool {
    f64::from(unit(rng)) >= 1.0 - share
}

/// The changes of a recipe. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Changes(Arc<[Box<dyn Change>]>);

impl Changes {
    /// Makes the changes from a recipe's settings.
    pub fn new(settings: &[Settings]) -> Self {
        let change =
            |settings: &Settings| each_change!(settings, it => Box::new(it.clone()) as Box<dyn Change>);
        Self(settings.iter().map(change).collect())
    }

    /// Returns whether choices apply to the decoded image, not only to the resized one.
    pub(super) fn need_decoded(&self) -> bool {
        self.0.iter().any(|change| change.needs_decoded())
    }

    /// Checks that images of this size can be changed.
    pub(super) fn check(&self, (width, height): (u32, u32)) -> Result<()> {
        match width == height || !self.0.iter().any(|change| change.needs_square()) {
            true => Ok(()),
            false => Err(SampleError::NotSquare(width, height)),
        }
    }

    /// Draws for an image of the size `source` (width, height) that becomes `target`.
    pub(super) fn draw(&self, rng: &mut SampleRng, source: (u32, u32), target: (u32, u32)) -> Drawn {
        let mut drawn = Drawn::default();
        self.0.iter().for_each(|change| change.draw(rng, Sizes { source, target }, &mut drawn));
        drawn
    }
}

#[cfg(test)]
mod tests;
