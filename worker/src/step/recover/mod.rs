//! What a rank does where memory is refused: it tells the others, who drop the step with it, or it tries again.
//!
//! Which rank it was, and where, travels in the status vector; what follows from it is the same on every rank, so nothing
//! more is said between them.

mod exhausted;
mod shortage;

use crate::memory_report::Owners;
use dtrain_common::recipe::Budget;
use dtrain_torch_shim::memory;
use tch::Device;

pub(crate) use self::exhausted::Exhausted;
pub(crate) use self::shortage::Shortage;
pub(crate) use self::shortage::place;
use crate::OutOfMemory;
use crate::TrainError;
use crate::memory::{Phase, elsewhere};
use crate::out_of_memory::bytes_refused;
pub(crate) use crate::out_of_memory::{patiently, shielded};

/// What a rank knows of the memory that it is refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    device: Device,
    /// Bytes that tensors may take, where that is known.
    limit: Option<u64>,
}

impl Limits {
    pub(crate) fn new(device: Device, budget: Budget) -> Self {
        let limit = match (device, budget) {
            (_, Budget::Is(size)) => Some(size.0),
            (Device::Cuda(_), Budget::Auto) => memory::device_memory(device).ok().map(|(_, total)| total),
            _ => None,
        };
        Self { device, limit }
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// What this rank says of a refusal that it has just met, of so many bytes where that is known.
    pub(crate) fn shortage(&self, phase: Phase, refused: Option<u64>) -> Shortage {
        Shortage {
            phase,
            at_us: shortage::now_us(),
            allocated: memory::usage(self.device).map_or(0, |usage| usage.peak),
            limit: self.limit,
            refused,
        }
    }

    /// A refusal of memory in `phase` is a shortage, which the ranks deal with together; another error ends this rank.
    pub(crate) fn survive<T, E>(&self, outcome: Result<T, E>, phase: Phase) -> Result<Result<T, Shortage>, E>
    where
        E: OutOfMemory,
    {
        match outcome {
            Ok(value) => Ok(Ok(value)),
            Err(error) if error.is_out_of_memory() => {
                tracing::debug!("out of memory in {}", phase.name());
                Ok(Err(self.shortage(phase, bytes_refused(&error.to_string()))))
            }
            Err(error) => Err(error),
        }
    }

    /// What no tensor uses goes back, and the peak is that of the next try.
    pub(crate) fn free(&self) {
        // Neither failure would change what follows.
        let _ = memory::empty_cache(self.device);
        let _ = memory::reset_peak(self.device);
    }

    /// What ends a run, on all ranks, whose model takes no smaller batch than `batch`. `owners` says where this rank's bytes are.
    pub(crate) fn exhausted(
        &self,
        shortages: &[Option<Shortage>],
        batch: usize,
        step: u64,
        owners: Owners,
    ) -> TrainError {
        let first = place(shortages);
        let refused = first.as_ref().and_then(|(.., first)| first.refused);
        let place = first.map_or_else(String::new, |(words, _, first)| {
            format!("{words} at step {step}: {}", first.bytes())
        });
        TrainError::OutOfMemory(Box::new(Exhausted {
            place,
            batch,
            refused,
            owners,
            predicted: false,
            elsewhere: elsewhere(self.device),
        }))
    }
}
