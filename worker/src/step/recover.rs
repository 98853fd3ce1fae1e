//! The reaction of a rank to a failed allocation: it reports it, and all ranks drop the step; or it retries.
//!
//! The status vector has rank and phase. All ranks react to it alike, without further messages.

use std::time::{SystemTime, UNIX_EPOCH};

use dtrain_common::units::ByteSize;
use dtrain_recipe::Budget;
use dtrain_torch_shim::memory;
use tch::Device;

use super::error::StepError;
use super::exhausted::Exhausted;
use crate::OutOfMemory;
use crate::memory::{Owners, Phase, other_usage};
use crate::out_of_memory::failed_allocation_bytes;
pub(crate) use crate::out_of_memory::{catch_torch_panic, retry_on_oom};

/// The memory limits of a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) device: Device,
    /// Bytes that tensors may take, if known.
    limit: Option<u64>,
}

impl Limits {
    pub(crate) fn new(device: Device, budget: Budget) -> Self {
        let limit = match (device, budget) {
            (_, Budget::Value(size)) => Some(size.0),
            (Device::Cuda(_), Budget::Auto) => memory::device_memory(device).ok().map(|(_, total)| total),
            _ => None,
        };
        Self { device, limit }
    }

    /// Returns the report of an allocation that has just failed, of `requested_bytes` bytes if known.
    pub(crate) fn shortage(&self, phase: Phase, requested_bytes: Option<u64>) -> Shortage {
        Shortage {
            phase,
            at_us: now_us(),
            allocated: memory::usage(self.device).map_or(0, |usage| usage.peak),
            limit: self.limit,
            requested_bytes,
        }
    }

    /// Turns a failed allocation in `phase` into a shortage, for all ranks to handle. Other errors remain.
    pub(crate) fn find_shortage<T, E: OutOfMemory>(
        &self,
        outcome: Result<T, E>,
        phase: Phase,
    ) -> Result<Result<T, Shortage>, E> {
        outcome.map(Ok).or_else(|error| match error.is_out_of_memory() {
            true => {
                tracing::debug!("out of memory in {}", phase.name());
                Ok(Err(self.shortage(phase, failed_allocation_bytes(&error.to_string()))))
            }
            false => Err(error),
        })
    }

    /// Frees cached memory, and resets the peak for the retry.
    pub(crate) fn empty_cache(&self) {
        // Failures here have no effect on the retry.
        let _ = memory::empty_cache(self.device);
        let _ = memory::reset_peak(self.device);
    }

    /// Returns the error that ends a run on all ranks, when the model takes no batch smaller than `batch`.
    pub(crate) fn exhausted_error(
        &self,
        shortages: &[Option<Shortage>],
        batch: usize,
        step: u64,
        owners: Owners,
    ) -> StepError {
        let first = describe_shortages(shortages);
        let requested_bytes = first.as_ref().and_then(|found| found.first.requested_bytes);
        let location = first.map_or_else(String::new, |Shortages { location, first, .. }| {
            format!("{location} at step {step}: {}", first.describe_bytes())
        });
        StepError::OutOfMemory(Box::new(Exhausted {
            location,
            batch,
            reason: None,
            requested_bytes,
            owners,
            predicted: false,
            other_usage: other_usage(self.device),
        }))
    }
}

impl Phase {
    /// Returns the number in the status vector, where 0 means no shortage.
    fn code(self) -> f64 {
        f64::from(self as u8) + 1.0
    }

    fn of_code(code: f64) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.code() == code)
    }
}

/// A failed allocation on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) phase: Phase,
    /// Microseconds since the Unix epoch.
    pub(crate) at_us: u64,
    /// Peak bytes of tensors on the rank's device.
    pub(crate) allocated: u64,
    /// Bytes that the rank may use, if known.
    pub(crate) limit: Option<u64>,
    /// Bytes of the failed allocation, if the allocator reports them.
    pub(crate) requested_bytes: Option<u64>,
}

impl Shortage {
    /// Figures in the status vector. Whole numbers up to 2^53 are exact in float64.
    pub(crate) const FIGURES: usize = 5;

    /// Returns this rank's figures; zeros without a shortage, so that a sum keeps those of other ranks.
    pub(crate) fn to_figures(own: Option<Self>) -> [f64; Self::FIGURES] {
        own.map_or([0.0; Self::FIGURES], |own| {
            [
                own.phase.code(),
                own.at_us as f64,
                own.allocated as f64,
                own.limit.unwrap_or(0) as f64,
                own.requested_bytes.unwrap_or(0) as f64,
            ]
        })
    }

    pub(crate) fn from_figures(figures: &[f64]) -> Option<Self> {
        let [code, at_us, allocated, limit, requested_bytes] = *figures else { return None };
        Phase::of_code(code).map(|phase| Self {
            phase,
            at_us: at_us as u64,
            allocated: allocated as u64,
            limit: (limit > 0.0).then_some(limit as u64),
            requested_bytes: (requested_bytes > 0.0).then_some(requested_bytes as u64),
        })
    }

    /// Formats the bytes: `4.20 GiB of 5.00 GiB allocated, an allocation of 1.20 GiB failed`.
    pub(crate) fn describe_bytes(&self) -> String {
        let mut words = ByteSize(self.allocated).to_string();
        if let Some(limit) = self.limit {
            words += &format!(" of {}", ByteSize(limit));
        }
        words += " allocated";
        if let Some(requested) = self.requested_bytes {
            words += &format!(", an allocation of {} failed", ByteSize(requested));
        }
        words
    }

    pub(crate) fn elapsed_ms(&self) -> f64 {
        now_us().saturating_sub(self.at_us) as f64 / 1e3
    }
}

fn now_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// The shortages of a step on all ranks.
pub(crate) struct Shortages {
    /// Ranks and phase, such as "on rank 1 in backward".
    pub(crate) location: String,
    /// The ranks that ran out of memory.
    pub(crate) ranks: Vec<usize>,
    pub(crate) first: Shortage,
}

/// Summarizes the shortages; None if no rank ran out of memory.
pub(crate) fn describe_shortages(shortages: &[Option<Shortage>]) -> Option<Shortages> {
    let first = shortages.iter().flatten().next().copied()?;
    let ranks: Vec<usize> = (0..shortages.len()).filter(|&rank| shortages[rank].is_some()).collect();
    let words = match ranks.as_slice() {
        [one] => format!("rank {one}"),
        [others @ .., last] => {
            let others: Vec<String> = others.iter().map(usize::to_string).collect();
            format!("ranks {} and {last}", others.join(", "))
        }
        [] => return None,
    };
    Some(Shortages { location: format!("on {words} in {}", first.phase.name()), ranks, first })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shortage(phase: Phase) -> Shortage {
        Shortage { phase, at_us: now_us(), allocated: 3 << 29, limit: None, requested_bytes: Some(1 << 20) }
    }

    #[test]
    fn shortages_round_trip_through_figures() {
        for phase in Phase::ALL {
            let one = shortage(phase);
            assert_eq!(Shortage::from_figures(&Shortage::to_figures(Some(one))), Some(one));
        }
        assert_eq!(Shortage::from_figures(&Shortage::to_figures(None)), None);
    }

    #[test]
    fn descriptions_list_all_ranks_and_the_first_phase() {
        let words = |shortages: &[Option<Shortage>]| describe_shortages(shortages).unwrap().location;
        let (forward, backward) = (Some(shortage(Phase::Forward)), Some(shortage(Phase::Backward)));
        assert_eq!(words(&[None, backward]), "on rank 1 in backward");
        assert_eq!(words(&[forward, None, backward]), "on ranks 0 and 2 in forward");
        assert_eq!(words(&[backward, forward, forward]), "on ranks 0, 1 and 2 in backward");
        assert!(describe_shortages(&[None, None]).is_none());
        assert_eq!(
            shortage(Phase::Reduce).describe_bytes(),
            "1.50 GiB allocated, an allocation of 1.00 MiB failed"
        );
    }
}
