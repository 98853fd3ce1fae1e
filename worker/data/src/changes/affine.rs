//! Rotations, shifts, scales and shears at once.

use dtrain_recipe::changes::Affine;

use super::super::rng::{SampleRng, between};
use super::moves::Move;
use super::warp::{Map, Warp};
use super::{Change, Drawn, Sizes};

impl Change for Affine {
    fn draw(&self, rng: &mut SampleRng, sizes: Sizes, drawn: &mut Drawn) {
        let mut within = |most: f64| f64::from(between(rng, -most as f32, most as f32));
        let degrees = within(self.degrees);
        let (width, height) = sizes.target;
        let translate =
            [width, height].map(|side| within(self.translate * f64::from(side)).round_ties_even());
        let shear = [within(self.shear), 0.0];
        let [least, most] = self.scale.map(|scale| scale as f32);
        let scale = f64::from(between(rng, least, most));
        let part = Parts { degrees, translate, scale, shear, ..Parts::default() };
        drawn.shift(Move::Warp(Warp::new(part.map(), self.filter)));
    }
}

/// The parts of an affine map, as torchvision's `affine` takes them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    /// With the clock.
    pub(super) degrees: f64,
    /// In pixels, to the right and down.
    pub(super) translate: [f64; 2],
    pub(super) scale: f64,
    /// Along rows and columns, in degrees.
    pub(super) shear: [f64; 2],
    /// The point that stays, from the middle of the image.
    pub(super) center: [f64; 2],
}

impl Default for Parts {
    fn default() -> Self {
        Self { degrees: 0.0, translate: [0.0; 2], scale: 1.0, shear: [0.0; 2], center: [0.0; 2] }
    }
}

impl Parts {
    /// Returns the source of each pixel: the inverse of the map, as torchvision's `_get_inverse_affine_matrix`.
    pub(super) fn map(self) -> Map {
        let (turn, [shear_x, shear_y]) = (self.degrees.to_radians(), self.shear.map(f64::to_radians));
        let [center_x, center_y] = self.center;
        let (to_x, to_y) = (center_x + self.translate[0], center_y + self.translate[1]);
        // Rotation and shears, whose determinant is 1.
        let a = (turn - shear_y).cos() / shear_y.cos();
        let b = -(a * shear_x.tan() + turn.sin());
        let c = (turn - shear_y).sin() / shear_y.cos();
        let d = turn.cos() - c * shear_x.tan();
        let [a, b, c, d] = [d, -b, -c, a].map(|value| value / self.scale);
        Map::Affine([a, b, center_x - a * to_x - b * to_y, c, d, center_y - c * to_x - d * to_y])
    }
}

/// Returns a rotation against the clock, as torchvision's `rotate`.
pub(super) fn rotated(degrees: f64) -> Map {
    Parts { degrees: -degrees, ..Parts::default() }.map()
}
