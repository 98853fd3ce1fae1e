//! The layers that the networks are made of, each registering its tensors under PyTorch's names.
//!
//! Initial values come from torch's global CPU generator, whatever the device, so that after the same
//! `tch::manual_seed` every rank builds the same model on any hardware. No layer drops values at random: a mask drawn for a
//! micro-batch would make the result depend on how the batch is cut.

mod batch_norm;
mod conv;
mod init;
mod layout;
mod linear;
mod transformer;

pub use batch_norm::{BatchGroups, BatchNorm2d, BatchSync};
pub use conv::{Conv2d, ConvOptions, ConvTranspose2d};
pub use init::{Init, without_drawing};
pub use layout::{channels_last, is_channels_last};
pub(super) use layout::{input_layout, input_size};
pub use linear::{Embedding, Linear, Shadow, Weight};
pub use transformer::{Block, BlockNames, BlockOptions, LayerNorm};

#[cfg(test)]
mod tests;
