//! Parts that tasks share: losses and figures of tensors, by the settings of a recipe. No ranks, no micro-batches, no data.

pub mod figures;
mod loss;
pub mod losses;
mod object;
mod outputs;
#[cfg(test)]
mod parity;
mod wanted;

pub use loss::Loss;
pub use outputs::{Outputs, enlarged};
pub use wanted::Wanted;
