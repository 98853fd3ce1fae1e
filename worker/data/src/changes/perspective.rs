//! Images seen from another side.

use dtrain_recipe::changes::Perspective;

use super::super::rng::{SampleRng, below};
use super::moves::Move;
use super::warp::{Map, Warp};
use super::{Change, Drawn, Sizes, happens};

/// As torchvision's `RandomPerspective`.
impl Change for Perspective {
    fn draw(&self, rng: &mut SampleRng, sizes: Sizes, drawn: &mut Drawn) {
        if !happens(rng, self.share) {
            return;
        }
        let (width, height) = sizes.target;
        let mut inwards = |side: u32| below(rng, (self.distortion * f64::from(side / 2)) as u32 + 1);
        let mut corner = |is_right: bool, is_low: bool| {
            let (x, y) = (inwards(width), inwards(height));
            let x = if is_right { width.saturating_sub(1 + x) } else { x };
            let y = if is_low { height.saturating_sub(1 + y) } else { y };
            [x, y].map(f64::from)
        };
        let corners = [corner(false, false), corner(true, false), corner(true, true), corner(false, true)];
        if let Some(map) = map((width, height), corners) {
            drawn.shift(Move::Warp(Warp::new(map, self.filter)));
        }
    }
}

/// Returns the map that brings the corners of an image of the size (width, height) to the given ones: upper left, upper right,
/// lower right, lower left. Corners on one line have none.
pub(super) fn map((width, height): (u32, u32), corners: [[f64; 2]; 4]) -> Option<Map> {
    let (right, low) = (f64::from(width) - 1.0, f64::from(height) - 1.0);
    let sources = [[0.0, 0.0], [right, 0.0], [right, low], [0.0, low]];
    // Two equations for each corner: x' (gx + hy + 1) = ax + by + c, and the same of y'.
    let mut rows = [[0.0; 9]; 8];
    for (at, ([x, y], [to_x, to_y])) in corners.into_iter().zip(sources).enumerate() {
        rows[2 * at] = [x, y, 1.0, 0.0, 0.0, 0.0, -to_x * x, -to_x * y, to_x];
        rows[2 * at + 1] = [0.0, 0.0, 0.0, x, y, 1.0, -to_y * x, -to_y * y, to_y];
    }
    solve(rows).map(Map::Perspective)
}

/// Solves eight linear equations, each with its right side at the end.
fn solve(mut rows: [[f64; 9]; 8]) -> Option<[f64; 8]> {
    for at in 0..8 {
        let pivot = (at..8).max_by(|&a, &b| rows[a][at].abs().total_cmp(&rows[b][at].abs()))?;
        rows.swap(at, pivot);
        let row = rows[at];
        if row[at].abs() < 1e-9 {
            return None;
        }
        for other in (0..8).filter(|&other| other != at) {
            let factor = rows[other][at] / row[at];
            rows[other].iter_mut().zip(row).for_each(|(value, x)| *value -= factor * x);
        }
    }
    Some(std::array::from_fn(|at| rows[at][8] / rows[at][at]))
}
