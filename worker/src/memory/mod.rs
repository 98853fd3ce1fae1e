//! The memory of a rank by owner and phase: measured in every step, and predicted before the first.

mod accounting;
pub(crate) mod budget;
mod fragmentation;
mod owners;

pub(crate) use accounting::{
    Account, MemoryStats, MicroStepMemory, OtherUsage, Phase, StepMemory, other_usage, report,
};
pub(crate) use fragmentation::{FRAGMENTATION_PERCENT, SEGMENT, without_gaps};
pub(crate) use owners::{MemoryReport, Owners, PhasePeaks};
