//! Where the memory of a rank is: measured in every step, and predicted before the first.

mod accounting;
mod predictor;

pub use accounting::{Account, Books, Phase, StepMemory, report};
pub use predictor::SymbolicPredictor;
