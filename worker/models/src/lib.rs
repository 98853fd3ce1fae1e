//! The networks and their weights. This crate does not know ranks, optimizers or data sets.
//!
//! A model is built into a [`Registry`], which lists its tensors by name; [`load_state`] fills them from a
//! safetensors file. Random numbers come from torch's global CPU generator: for a repeatable model, call
//! `tch::manual_seed` before [`build`].
//!
//! | Task | Network | Function |
//! |---|---|---|
//! | images to classes | ResNets, a vision transformer ([`Architecture`]) | [`build`] |
//! | images to classes of their pixels | a U-Net ([`UnetConfig`]) | [`build_unet`] |
//! | text to its next token | a GPT ([`GptConfig`]) | [`Gpt::new`] |

use std::sync::{Mutex, MutexGuard, PoisonError};

use tch::Tensor;

mod batch_rows;
mod batch_sync;
mod dtype;
mod error;
mod exported;
mod exported_error;
mod foreign;
mod frozen;
mod gpt;
mod layers;
mod layout;
mod lora;
mod mismatch;
mod pairs;
mod recognise;
mod recompute;
mod registry;
mod resnet;
mod settings;
mod shards;
mod tensor_file;
mod unet;
mod vit;
mod weight;
mod weights;

pub use batch_sync::{BatchGroups, BatchSync};
pub use dtype::dtype_of;
pub use error::{ModelError, WeightsError, WeightsProblem};
pub use exported::{Exported, Port, WrittenBuffer};
pub use exported_error::{ExportedError, Problem};
pub use frozen::{FrozenAs, FrozenWeights};
pub use gpt::{Gpt, GptConfig};
pub use layers::{
    BatchNorm, Block, BlockNames, BlockOptions, Conv2d, ConvOptions, ConvTranspose2d, DropPath, Dropout,
    Embedding, Init, LayerNorm, Linear, without_random_init,
};
pub use layout::{channels_last, is_channels_last};
pub use lora::{Adapted, Lora};
pub use mismatch::{DtypeDifference, Mismatch, ShapeDifference};
pub use recompute::{Recompute, Segment, is_recomputing};
pub use registry::{Entry, Registry, Role, Scope};
pub use shards::shards;
pub use tensor_file::TensorFile;
pub use unet::UnetConfig;
pub use vit::VitConfig;
pub use weight::{Shadow, Weight};
pub use weights::{LoadReport, Renames, Resampled, WeightsMode, load_renamed, load_state};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The panic is reported elsewhere, and what the mutexes hold stays consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The available classifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// 18 layers, 11.7 million parameters at 1000 classes.
    ResNet18,
    /// 34 layers, 21.8 million parameters at 1000 classes.
    ResNet34,
    /// 50 layers in bottleneck blocks, 25.6 million parameters at 1000 classes.
    ResNet50,
    /// 101 layers in bottleneck blocks, 44.5 million parameters at 1000 classes.
    ResNet101,
    /// 152 layers in bottleneck blocks, 60.2 million parameters at 1000 classes.
    ResNet152,
    /// A vision transformer.
    Vit(VitConfig),
}

/// A network that classifies images or their pixels.
pub trait Classifier: Send {
    /// Computes logits from normalised images, N x channels x H x W in the parameters' dtype: N x classes, or
    /// for pixels N x classes x H x W. With `train`, batch normalisation uses the batch's statistics and
    /// updates the running ones. torch's gradient mode decides whether a graph is kept for backward.
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor, ModelError>;

    /// Returns the fewest samples of a training micro-batch of square images. Batch normalisation needs two
    /// values per channel: 2 if the last feature map is a single pixel, otherwise 1. With batch normalisation
    /// over several participants it is 1, if together they have at least two samples.
    fn min_micro_batch(&self, image_size: usize) -> usize;
}

/// Builds a classifier of images of `channels` channels with random initial weights. Registers its tensors in
/// the order of PyTorch's `state_dict`.
pub fn build(
    arch: Architecture,
    channels: usize,
    classes: usize,
    registry: &mut Registry,
) -> Result<Box<dyn Classifier>, ModelError> {
    let (blocks, bottleneck) = match arch {
        Architecture::ResNet18 => ([2, 2, 2, 2], false),
        Architecture::ResNet34 => ([3, 4, 6, 3], false),
        Architecture::ResNet50 => ([3, 4, 6, 3], true),
        Architecture::ResNet101 => ([3, 4, 23, 3], true),
        Architecture::ResNet152 => ([3, 8, 36, 3], true),
        Architecture::Vit(config) => {
            return Ok(Box::new(vit::Vit::new(config, channels, classes, registry)?));
        }
    };
    let layout = resnet::Layout { blocks, bottleneck };
    Ok(Box::new(resnet::ResNet::new(layout, channels, classes, registry)?))
}

/// Builds a U-Net with random initial weights. Registers its tensors in the order of PyTorch's `state_dict`.
pub fn build_unet(config: UnetConfig, registry: &mut Registry) -> Result<Box<dyn Classifier>, ModelError> {
    Ok(Box::new(unet::Unet::new(config, registry)?))
}
