//! Rotations by any angle.

use dtrain_recipe::changes::Rotation;

use super::super::rng::{SampleRng, between};
use super::moves::Move;
use super::warp::Warp;
use super::{Change, Drawn, Sizes, affine};

impl Change for Rotation {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        let degrees = self.degrees as f32;
        let angle = f64::from(between(rng, -degrees, degrees));
        drawn.shift(Move::Warp(Warp::new(affine::rotated(angle), self.filter)));
    }
}
