//! The parts of a step, and which of them bounds it.

use super::times::Times;
use dtrain_common::trace::Kind;

/// A smaller part of a step is no bound.
pub(super) const NOTABLE: f64 = 0.2;

/// What a step spends its time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bound {
    Data,
    Communication,
    Launches,
    Arithmetic,
    /// Launches or arithmetic, which only a timeline tells apart.
    Computing,
}

/// The parts of a step, each from 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Shares {
    pub(super) data: f64,
    pub(super) communication: f64,
    pub(super) launches: f64,
    pub(super) arithmetic: f64,
}

impl Shares {
    pub(super) fn bound(&self) -> Bound {
        let wastes = [
            (self.data, Bound::Data),
            (self.communication, Bound::Communication),
            (self.launches, Bound::Launches),
        ];
        let largest = wastes.into_iter().max_by(|a, b| a.0.total_cmp(&b.0));
        largest.filter(|(share, _)| *share >= NOTABLE).map_or(Bound::Arithmetic, |(_, bound)| bound)
    }
}

/// Returns the time for which a rank reduces and waits for others.
pub(super) fn communication(times: &Times) -> f64 {
    let on_host = times.part(Kind::Communication) + times.part(Kind::Bucket);
    times.gpu.map_or(on_host, |gpu| gpu.reducing_ms)
}

/// Returns the parts of a rank's step.
pub(super) fn shares(times: &Times) -> Shares {
    let share = |ms: f64| (ms / times.step_ms).clamp(0.0, 1.0);
    let (load, communication) = (times.part(Kind::Load), communication(times));
    match times.gpu {
        Some(gpu) => {
            let idle = times.step_ms - gpu.computing_ms - communication;
            Shares {
                data: share(load.min(idle)),
                communication: share(communication),
                launches: share(idle - load.min(idle)),
                arithmetic: share(gpu.computing_ms),
            }
        }
        None => Shares {
            data: share(load),
            communication: share(communication),
            launches: share(times.computing() - times.long_ms),
            arithmetic: share(times.long_ms),
        },
    }
}

/// Formats a share: `63%`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}
