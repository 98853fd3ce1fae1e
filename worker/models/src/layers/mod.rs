//! The layers of the networks, each of which registers its tensors under PyTorch's names.
//!
//! Initial values come from torch's global CPU generator, so that after the same `tch::manual_seed` every
//! rank builds the same model on any hardware. No layer has dropout: a mask per micro-batch would make the
//! result depend on the partition of the batch.

mod batch_norm;
mod conv;
mod init;
mod linear;
mod transformer;

pub use batch_norm::BatchNorm;
pub(crate) use batch_norm::{BatchNormOptions, copy_of};
pub use conv::{Conv2d, ConvOptions, ConvTranspose2d};
pub use init::{Init, without_random_init};
pub use linear::{Embedding, Linear};
pub use transformer::{Block, BlockNames, BlockOptions, LayerNorm};

#[cfg(test)]
pub(crate) mod tests;
