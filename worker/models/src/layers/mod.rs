//! The layers of the networks, each of which registers its tensors under PyTorch's names.
//!
//! Initial values come from torch's global CPU generator, so that after the same `tch::manual_seed` every
//! rank builds the same model on any hardware. Dropout draws by sample, so that the partition of
//! the batch does not matter.

mod adapter;
mod batch_norm;
mod conv;
mod dropout;
mod init;
mod linear;
mod transformer;

pub(crate) use adapter::adapt;
pub use batch_norm::BatchNorm;
pub(crate) use batch_norm::{BatchNormOptions, copy_of};
pub use conv::{Conv2d, ConvOptions, ConvTranspose2d};
pub use dropout::{DropPath, Dropout};
pub use init::{Init, without_random_init};
pub use linear::{Embedding, Linear};
pub use transformer::{Block, BlockNames, BlockOptions, LayerNorm};

#[cfg(test)]
pub(crate) mod tests;
