//! The memory of a rank by owner and phase: measured in every step, and predicted before the first.

mod accounting;
pub(crate) mod budget;
mod predictor;
pub(crate) mod rehearsal;
pub(crate) mod start;

pub(crate) use accounting::{
    Account, MemoryStats, MicroStepMemory, OtherUsage, Phase, StepMemory, other_usage, report,
};
pub(crate) use predictor::{SymbolicPredictor, Target};
