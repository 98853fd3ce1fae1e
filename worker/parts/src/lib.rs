//! Parts that tasks share: functions of tensors. No ranks, no micro-batches, no recipes.

pub mod losses;
