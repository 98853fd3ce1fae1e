//! Which errors mean that memory ran out: those that carry a refusal of libtorch's allocator, however deep.

use std::error::Error;

use dtrain_torch_shim::{ErrorKind, ShimError, kind_of};
use tch::TchError;

use crate::checkpoint::CheckpointError;
use crate::collectives::CollectiveError;
use crate::engine::{ArenaError, EmaError, ReduceError, TrainError};
use crate::models::ModelError;
use crate::optim::OptimError;
use crate::tasks::TaskError;

/// An error that may have been for want of memory.
pub trait OutOfMemory {
    /// Whether memory ran out, on the device or on the host.
    fn is_out_of_memory(&self) -> bool;
}

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

impl OutOfMemory for ModelError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Sync { source } => anywhere(source.as_ref()),
            _ => false,
        }
    }
}

impl OutOfMemory for TaskError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Model(error) => error.is_out_of_memory(),
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Script(error) => error.is_out_of_memory(),
            Self::Own(error) => anywhere(error.as_ref()),
            Self::Data(_) | Self::Recipe(_) | Self::NoField { .. } => false,
        }
    }
}

impl OutOfMemory for ArenaError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Memory(error) => error.is_out_of_memory(),
            Self::Move { source, .. } => source.is_out_of_memory(),
        }
    }
}

impl OutOfMemory for OptimError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Kernel(error) => error.is_out_of_memory(),
            Self::Torch(error) => error.is_out_of_memory(),
        }
    }
}

impl OutOfMemory for EmaError {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Torch(error) if error.is_out_of_memory())
    }
}

impl OutOfMemory for CheckpointError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Model(error) => error.is_out_of_memory(),
            Self::Collective(error) => error.is_out_of_memory(),
            Self::Io { .. }
            | Self::Manifest(_)
            | Self::Tensors { .. }
            | Self::Env(_)
            | Self::Unwritable(_)
            | Self::Peer(_)
            | Self::Writer => false,
        }
    }
}

impl OutOfMemory for ReduceError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Collective(error) => error.is_out_of_memory(),
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Hook(error) => error.is_out_of_memory(),
            Self::Late { .. } => false,
        }
    }
}

impl OutOfMemory for TrainError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            Self::OutOfMemory(_) | Self::UnknownSums => true,
            Self::Torch(error) => error.is_out_of_memory(),
            Self::Model(error) => error.is_out_of_memory(),
            Self::Task(error) => error.is_out_of_memory(),
            Self::Kernel(error) => error.is_out_of_memory(),
            Self::Reduce(error) => error.is_out_of_memory(),
            Self::Collective(error) => error.is_out_of_memory(),
            Self::Optim(error) => error.is_out_of_memory(),
            Self::Arena(error) => error.is_out_of_memory(),
            Self::Ema(error) => error.is_out_of_memory(),
            Self::Checkpoint { source, .. } => source.is_out_of_memory(),
            Self::Data(_)
            | Self::LoaderEnded
            | Self::TooManyBad { .. }
            | Self::NonFinite { .. }
            | Self::LossScale { .. }
            | Self::Scaler(_)
            | Self::Metrics(_) => false,
        }
    }
}

/// Looks through an error of an unknown type and its causes.
fn anywhere(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let found = error.downcast_ref::<TchError>().is_some_and(|e| e.is_out_of_memory())
            // What a call out of the graph reports arrives as text alone.
            || error
                .downcast_ref::<ShimError>()
                .is_some_and(|e| e.is_out_of_memory() || e.message.contains("out of memory"))
            || error.downcast_ref::<CollectiveError>().is_some_and(OutOfMemory::is_out_of_memory)
            || error.downcast_ref::<ModelError>().is_some_and(OutOfMemory::is_out_of_memory)
            || error.downcast_ref::<TaskError>().is_some_and(OutOfMemory::is_out_of_memory);
        if found {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refused() -> TchError {
        tch::Tensor::f_zeros([1 << 50], (tch::Kind::Float, tch::Device::Cpu)).unwrap_err()
    }

    fn other() -> TchError {
        tch::Tensor::from_slice(&[1f32]).f_view([3]).unwrap_err()
    }

    fn shim(kind: ErrorKind) -> ShimError {
        ShimError {
            op: "test",
            kind,
            message: String::new(),
        }
    }

    fn collective(message: TchError) -> CollectiveError {
        let operation = crate::collectives::Operation {
            op: "all_reduce",
            rank: 0,
            sequence: 1,
            bytes: 4,
            timeout: std::time::Duration::ZERO,
        };
        operation.torch(message)
    }

    #[test]
    fn a_refusal_is_found_however_deep_it_lies() {
        let refusals: Vec<TrainError> = vec![
            refused().into(),
            ModelError::from(refused()).into(),
            TaskError::from(ModelError::from(refused())).into(),
            TaskError::Own(Box::new(TaskError::from(refused()))).into(),
            TaskError::Own(Box::new(shim(ErrorKind::OutOfMemory))).into(),
            ModelError::Sync {
                source: collective(refused()).into(),
            }
            .into(),
            shim(ErrorKind::OutOfMemory).into(),
            ReduceError::from(refused()).into(),
            ReduceError::from(shim(ErrorKind::OutOfMemory)).into(),
            ReduceError::from(collective(refused())).into(),
            collective(refused()).into(),
            OptimError::from(shim(ErrorKind::OutOfMemory)).into(),
            EmaError::from(refused()).into(),
            ArenaError::Move {
                name: "weight".into(),
                source: shim(ErrorKind::OutOfMemory),
            }
            .into(),
            TrainError::Checkpoint {
                step: 1,
                source: refused().into(),
            },
        ];
        for error in refusals {
            assert!(error.is_out_of_memory(), "{error:?}");
        }
    }

    #[test]
    fn other_failures_are_none() {
        let failures: Vec<TrainError> = vec![
            other().into(),
            TaskError::Own("out of patience".into()).into(),
            ModelError::Sync {
                source: shim(ErrorKind::Network).into(),
            }
            .into(),
            collective(other()).into(),
            ReduceError::Late {
                name: "weight".into(),
            }
            .into(),
            TrainError::LoaderEnded,
        ];
        for error in failures {
            assert!(!error.is_out_of_memory(), "{error:?}");
        }
    }
}
