//! Random parts of the file.

use dtrain_recipe::changes::ResizedCrop;

use super::super::fit::Frame;
use super::super::rng::{SampleRng, below, between};
use super::{Change, Drawn, Sizes};

/// How often a rectangle is drawn that does not fit.
const TRIES: usize = 10;

/// As torchvision's `RandomResizedCrop(size)`.
impl Change for ResizedCrop {
    fn draw(&self, rng: &mut SampleRng, sizes: Sizes, drawn: &mut Drawn) {
        drawn.frame = Some(rectangle(self, rng, sizes));
    }

    fn needs_decoded(&self) -> bool {
        true
    }
}

fn rectangle(settings: &ResizedCrop, rng: &mut SampleRng, sizes: Sizes) -> Frame {
    let Sizes { source: (width, height), target } = sizes;
    let area = f64::from(width) * f64::from(height);
    let [(least, most), (narrow, wide)] = [settings.area, settings.ratio].map(|[a, b]| (a, b));
    for _ in 0..TRIES {
        let part = area * f64::from(between(rng, least as f32, most as f32));
        let ratio = f64::from(between(rng, narrow.ln() as f32, wide.ln() as f32)).exp();
        let size =
            ((part * ratio).sqrt().round_ties_even() as u32, (part / ratio).sqrt().round_ties_even() as u32);
        if (1..=width).contains(&size.0) && (1..=height).contains(&size.1) {
            let left = below(rng, width - size.0 + 1);
            let top = below(rng, height - size.1 + 1);
            return Frame::rectangle((left, top), size, target);
        }
    }
    // The largest central rectangle with an allowed ratio.
    let ratio = f64::from(width) / f64::from(height);
    let size = if ratio < narrow {
        (width, (f64::from(width) / narrow).round_ties_even() as u32)
    } else if ratio > wide {
        ((f64::from(height) * wide).round_ties_even() as u32, height)
    } else {
        (width, height)
    };
    let size = (size.0.clamp(1, width), size.1.clamp(1, height));
    Frame::rectangle(((width - size.0) / 2, (height - size.1) / 2), size, target)
}
