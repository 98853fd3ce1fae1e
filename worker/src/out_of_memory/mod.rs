//! Recognises errors caused by a failed allocation, at any depth, and retries on one rank alone.

mod panics;
mod retry;

use std::error::Error;
use std::fmt::Display;

use dtrain_torch_shim::{ErrorKind, ShimError, kind_of};
use tch::TchError;

pub(crate) use self::panics::catch_torch_panic;
pub(crate) use self::retry::retry_on_oom;
use crate::collectives::{CollectiveError, RendezvousError};
use crate::models::ModelError;

/// An error that a failed allocation may have caused. Its message then ends with the allocator's message.
pub trait OutOfMemory: Display {
    /// Returns whether memory ran out, on the device or on the host.
    fn is_out_of_memory(&self) -> bool;
}

/// Implements [`OutOfMemory`] by asking the error in one of these variants.
macro_rules! impl_out_of_memory {
    ($error:ty: $($variant:ident),+) => {
        impl $crate::OutOfMemory for $error {
            fn is_out_of_memory(&self) -> bool {
                #[allow(unreachable_patterns)]
                match self {
                    $(Self::$variant(error) => $crate::OutOfMemory::is_out_of_memory(error),)+
                    _ => false,
                }
            }
        }
    };
}
pub(crate) use impl_out_of_memory;

impl OutOfMemory for TchError {
    fn is_out_of_memory(&self) -> bool {
        kind_of(self) == ErrorKind::OutOfMemory
    }
}

impl OutOfMemory for ShimError {
    fn is_out_of_memory(&self) -> bool {
        self.kind == ErrorKind::OutOfMemory
    }
}

impl OutOfMemory for CollectiveError {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. })
    }
}

impl OutOfMemory for RendezvousError {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Group(error) if error.is_out_of_memory())
    }
}

impl OutOfMemory for ModelError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Sync(source) => any_cause_is_oom(source.as_ref()),
            _ => false,
        }
    }
}

/// Returns the bytes of a failed allocation, from libtorch's message for GPUs or the shim's for the CPU:
/// `Tried to allocate 1.50 GiB.`, with two decimals.
pub(crate) fn failed_allocation_bytes(words: &str) -> Option<u64> {
    let (_, after) = words.split_once("Tried to allocate ")?;
    let mut parts = after.split_whitespace();
    let (number, unit) = (parts.next()?, parts.next()?);
    let factor = match unit.trim_end_matches(['.', ',']) {
        "bytes" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    Some((number * f64::from(1u32 << factor)).round() as u64)
}

/// Searches an error of unknown type and its causes.
pub(crate) fn any_cause_is_oom(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|error| {
        error.downcast_ref::<TchError>().is_some_and(OutOfMemory::is_out_of_memory)
            // Errors from inside the autograd graph arrive as text.
            || error
                .downcast_ref::<ShimError>()
                .is_some_and(|e| e.is_out_of_memory() || e.message.contains("out of memory"))
            || error.downcast_ref::<CollectiveError>().is_some_and(OutOfMemory::is_out_of_memory)
            || error.downcast_ref::<ModelError>().is_some_and(OutOfMemory::is_out_of_memory)
    })
}

/// Returns the error itself, then its causes.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::collectives::Operation;
    use crate::run::TrainError;
    use crate::state::StateError;
    use crate::step::StepError;
    use crate::tasks::TaskError;

    pub(super) fn allocation_failure() -> TchError {
        tch::Tensor::f_zeros([1 << 50], (tch::Kind::Float, tch::Device::Cpu)).unwrap_err()
    }

    pub(super) fn other() -> TchError {
        tch::Tensor::from_slice(&[1f32]).f_view([3]).unwrap_err()
    }

    fn shim(kind: ErrorKind) -> ShimError {
        ShimError { op: "test", kind, message: String::new() }
    }

    fn collective(error: TchError) -> CollectiveError {
        let (operation, is_oom) = (Operation::new("all_reduce", 0), error.is_out_of_memory());
        let message = error.to_string();
        match is_oom {
            true => CollectiveError::OutOfMemory(operation, message),
            false => CollectiveError::Backend(operation, message),
        }
    }

    #[test]
    fn out_of_memory_is_found_at_any_depth() {
        let failures: Vec<TrainError> = vec![
            allocation_failure().into(),
            ModelError::from(allocation_failure()).into(),
            TaskError::from(ModelError::from(allocation_failure())).into(),
            TaskError::Custom(Box::new(TaskError::from(allocation_failure()))).into(),
            StateError::from(allocation_failure()).into(),
            StateError::from(shim(ErrorKind::OutOfMemory)).into(),
            StateError::from(collective(allocation_failure())).into(),
            StateError::Moved { name: "weight".into(), source: shim(ErrorKind::OutOfMemory) }.into(),
            TaskError::Custom(Box::new(shim(ErrorKind::OutOfMemory))).into(),
            ModelError::Sync(collective(allocation_failure()).into()).into(),
            shim(ErrorKind::OutOfMemory).into(),
            collective(allocation_failure()).into(),
            StepError::Checkpoint { step: 1, source: allocation_failure().into() }.into(),
        ];
        for error in failures {
            assert!(error.is_out_of_memory(), "{error:?}");
        }
    }

    #[test]
    fn the_size_of_a_failed_allocation_is_parsed() {
        let cpu = "CPU out of memory. Tried to allocate 12.25 MiB. The budget is 1.00 GiB, of which 3.00 MiB are free";
        assert_eq!(failed_allocation_bytes(cpu), Some(12 * (1 << 20) + (1 << 18)));
        let gpu = "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB";
        assert_eq!(failed_allocation_bytes(gpu), Some(3 << 29));
        assert_eq!(failed_allocation_bytes("Tried to allocate 512 bytes."), Some(512));
        for words in
            ["out of memory", "Tried to allocate", "Tried to allocate much MiB", "Tried to allocate 3 pages"]
        {
            assert_eq!(failed_allocation_bytes(words), None, "{words}");
        }
        let whole = TrainError::from(TaskError::from(ModelError::from(TchError::Torch(cpu.to_owned()))));
        assert!(failed_allocation_bytes(&whole.to_string()).is_some(), "{whole}");
    }

    #[test]
    fn other_failures_are_not_out_of_memory() {
        let failures: Vec<TrainError> = vec![
            other().into(),
            TaskError::Custom("out of patience".into()).into(),
            ModelError::Sync(shim(ErrorKind::Network).into()).into(),
            collective(other()).into(),
            StepError::LateGradient { name: "weight".into() }.into(),
            StepError::LoaderEnded.into(),
        ];
        for error in failures {
            assert!(!error.is_out_of_memory(), "{error:?}");
        }
    }
}
