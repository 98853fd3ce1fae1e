//! `data.mix`: ways to mix a training image with another of its step, declared once for each.

use dtrain_common::choices;
use dtrain_common::recipe::kinds::{Kind, Range};

use super::named::named;

choices! {
    /// Whether samples or steps draw how images are mixed.
    MixBy {
        Sample = "sample": "Each sample has another draw.",
        Step = "step": "All samples of a step are mixed alike, by one draw.",
    }
}

const ABOVE_ZERO: Kind = Kind::Number(Range::ABOVE_ZERO);
const SHARE: Kind = Kind::Number(Range::UP_TO_ONE);

named! { $
/// A way to mix a training image with another of its step.
Mix, MIXES, each_mix, "data.mix":

/// The weighted mean of the two normalised images (Zhang et al. 2018, arXiv 1710.09412).
"mixup" Mixup {
    /// The weight of the image is drawn from Beta(alpha, alpha).
    alpha: f64 = 0.2, ABOVE_ZERO;
    /// The part of the samples that is mixed so; entries without it divide the rest evenly.
    share: Option<f64> = None, SHARE;
}

/// A rectangle of the other image over the image (Yun et al. 2019, arXiv 1905.04899).
"cutmix" Cutmix {
    /// The part of the image that stays is drawn from Beta(alpha, alpha), before the rectangle is cut at the edges.
    alpha: f64 = 1.0, ABOVE_ZERO;
    /// The part of the samples that is mixed so; entries without it divide the rest evenly.
    share: Option<f64> = None, SHARE;
}
}

impl Mix {
    fn stated(&self) -> Option<f64> {
        each_mix!(self, it => it.share)
    }
}

/// Returns the part of the samples that each entry mixes.
pub fn shares(mixes: &[Mix]) -> Vec<f64> {
    let stated: f64 = mixes.iter().filter_map(Mix::stated).sum();
    let others = mixes.iter().filter(|mix| mix.stated().is_none()).count();
    let rest = (1.0 - stated).max(0.0) / others.max(1) as f64;
    mixes.iter().map(|mix| mix.stated().unwrap_or(rest)).collect()
}

/// Returns why the entries do not fit each other, with the number of the entry.
pub(crate) fn problem(mixes: &[Mix]) -> Option<(usize, String)> {
    /// Sums of parts such as 0.1 and 0.9 may round.
    const ROUNDING: f64 = 1e-9;
    let mut stated = 0.0;
    for (at, mix) in mixes.iter().enumerate() {
        if mixes[..at].iter().any(|other| other.name() == mix.name()) {
            return Some((at, "the mix is there twice; remove one of the two".to_owned()));
        }
        stated += mix.stated().unwrap_or(0.0);
        if stated > 1.0 + ROUNDING {
            let message = format!(
                "the entries mix {stated} of the samples; lower share, so that their sum is at most 1"
            );
            return Some((at, message));
        }
    }
    let empty = mixes.iter().zip(shares(mixes)).position(|(_, share)| share < ROUNDING)?;
    Some((empty, "the other entries mix all samples; lower their share, or remove this one".to_owned()))
}
