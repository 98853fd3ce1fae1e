//! The layers that the networks are made of, each registering its tensors under PyTorch's names.
//!
//! Initial values come from torch's global CPU generator, whatever the device, so that after the same
//! `tch::manual_seed` every rank builds the same model on any hardware. No layer drops values at random: a mask drawn for a
//! micro-batch would make the result depend on how the batch is cut.

mod batch_norm;
mod batch_sync;
mod conv;
mod init;
mod layout;
mod linear;
mod transformer;
mod weight;

pub use batch_norm::BatchNorm2d;
pub use batch_sync::{BatchGroups, BatchSync};
pub use conv::{Conv2d, ConvOptions, ConvTranspose2d};
pub use init::{Init, without_drawing};
pub use layout::{channels_last, is_channels_last};
pub(super) use layout::{input_layout, input_size};
pub use linear::{Embedding, Linear};
pub use transformer::{Block, BlockNames, BlockOptions, LayerNorm};
pub use weight::{Shadow, Weight};

#[cfg(test)]
mod tests;
