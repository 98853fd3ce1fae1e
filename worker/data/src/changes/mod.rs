//! Random changes to training images, in the order of the recipe; each file has one.
//!
//! A change draws from the sample's own generator, a function of (seed, epoch, sample), once for all files of the sample.
//! Geometry is in whole pixels, so that an image, its mask and its map change alike. Colour changes images alone.

// A new file needs no line here.
automod::dir!("src/changes");

use std::fmt;
use std::sync::Arc;

use dtrain_recipe::{Change as Settings, each_change};

use super::fit::Frame;
use super::plane::Placement;
use super::raster::{Raster, View};
use super::rng::SampleRng;

/// A change with its settings.
trait Change: fmt::Debug + Send + Sync {
    /// Draws once for a sample, and adds the choice to `drawn`.
    fn draw(&self, rng: &mut SampleRng, sizes: Sizes, drawn: &mut Drawn);

    /// Returns whether it chooses a part of the decoded image, not only of the resized one.
    fn needs_decoded(&self) -> bool {
        false
    }
}

/// A drawn change of an image's values.
trait Colour: fmt::Debug + Send + Sync {
    /// Changes an image that has the network's size.
    fn change(&self, image: &mut Raster);
}

/// Sizes of an image, (width, height).
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// The decoded image.
    source: (u32, u32),
    target: (u32, u32),
}

/// What was drawn for a sample.
#[derive(Debug, Clone, Default)]
pub(super) struct Drawn {
    /// The rectangle of the decoded image to use instead of [`Frame::new`]'s.
    pub(super) frame: Option<Frame>,
    pub(super) placement: Placement,
    colours: Vec<Arc<dyn Colour>>,
}

impl Drawn {
    /// Returns the same choices with another rectangle.
    pub(super) fn with_frame(&self, frame: Option<Frame>) -> Self {
        Self { frame, ..self.clone() }
    }

    /// Returns the image with its colours changed, in `memory` if there are any.
    pub(super) fn coloured<'a>(&self, image: View<'a>, memory: &'a mut Raster) -> View<'a> {
        if self.colours.is_empty() {
            return image;
        }
        *memory = image.to_raster();
        self.colours.iter().for_each(|colour| colour.change(memory));
        memory.view()
    }
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

    /// Draws for an image of the size `source` (width, height) that becomes `target`.
    pub(super) fn draw(&self, rng: &mut SampleRng, source: (u32, u32), target: (u32, u32)) -> Drawn {
        let mut drawn = Drawn::default();
        self.0.iter().for_each(|change| change.draw(rng, Sizes { source, target }, &mut drawn));
        drawn
    }
}
