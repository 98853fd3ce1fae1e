//! The whole range of values.

use dtrain_recipe::changes::Autocontrast;

use super::super::raster::{Raster, Values};
use super::super::rng::SampleRng;
use super::{Change, Colour, Drawn, Sizes, happens, values};

impl Change for Autocontrast {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        if happens(rng, self.share) {
            drawn.colour(WholeRange);
        }
    }
}

#[derive(Debug)]
pub(super) struct WholeRange;

impl Colour for WholeRange {
    /// A channel of one value stays.
    fn change(&self, image: &mut Raster) {
        let layout = (image.channels, image.view().is_rgb());
        match &mut image.values {
            Values::U8(values) => values::look_up(values, layout, table),
            Values::F32(values) => {
                let plane = values.len() / layout.0.max(1);
                for values in values.chunks_exact_mut(plane.max(1)) {
                    let (least, most) = values
                        .iter()
                        .fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), &x| (a.min(x), b.max(x)));
                    if most > least {
                        values.iter_mut().for_each(|value| *value = (*value - least) / (most - least));
                    }
                }
            }
        }
    }
}

fn table(counts: [u32; 256]) -> [u8; 256] {
    let least = counts.iter().position(|&count| count > 0).unwrap_or_default();
    let most = counts.iter().rposition(|&count| count > 0).unwrap_or_default();
    let scale = (most - least) as f32 * (1.0 / 255.0);
    std::array::from_fn(|value| match value {
        _ if most == least => value as u8,
        _ => (value.saturating_sub(least) as f32 / scale) as u8,
    })
}
