//! Equal frequencies of all values.

use dtrain_recipe::changes::Equalize;

use super::super::raster::{Raster, Values};
use super::super::rng::SampleRng;
use super::{Change, Colour, Drawn, Sizes, happens, values};

impl Change for Equalize {
    fn draw(&self, rng: &mut SampleRng, _: Sizes, drawn: &mut Drawn) {
        if happens(rng, self.share) {
            drawn.colour(Equal);
        }
    }
}

#[derive(Debug)]
pub(super) struct Equal;

impl Colour for Equal {
    /// As torchvision, values of other images become bytes first, from black at 0 to white at 1.
    fn change(&self, image: &mut Raster) {
        let layout = (image.channels, image.view().is_rgb());
        match &mut image.values {
            Values::U8(values) => values::look_up(values, layout, table),
            Values::F32(values) => {
                let mut bytes: Vec<u8> = values.iter().map(|value| (value * 255.999) as u8).collect();
                values::look_up(&mut bytes, (layout.0, false), table);
                values.iter_mut().zip(bytes).for_each(|(value, byte)| *value = f32::from(byte) / 255.0);
            }
        }
    }
}

/// Returns the new value of each byte, by Pillow's rule.
fn table(counts: [u32; 256]) -> [u8; 256] {
    let all: u32 = counts.iter().sum();
    let of_last = counts.iter().rfind(|&&count| count > 0).copied().unwrap_or_default();
    let step = (all - of_last) / 255;
    if step == 0 {
        return std::array::from_fn(|value| value as u8);
    }
    let mut below = 0;
    counts.map(|count| {
        let value = (below + step / 2) / step;
        below += count;
        value.min(255) as u8
    })
}
