//! The networks and their weights. Nothing here knows of ranks, optimizers or data sets.
//!
//! A model is built into a [`Registry`], which lists its tensors by name; [`load_state`] and [`save_state`] move that list
//! from and to a safetensors file. All randomness is torch's global CPU generator: call `tch::manual_seed` before
//! [`build`] for a repeatable model.

use std::fmt;

use tch::Tensor;

mod error;
mod layers;
mod mismatch;
mod recognise;
mod registry;
mod resnet;
mod tensor_file;
mod tensor_write;
mod weights;

pub use error::{ModelError, WeightsError};
pub use layers::{BatchNorm2d, Conv2d, Linear};
pub use mismatch::{Mismatch, ShapeDifference};
pub use registry::{Entry, Registry, Role, Scope};
pub use tensor_file::TensorFile;
pub use tensor_write::write_tensors;
pub use weights::{LoadMode, LoadReport, load_state, save_state};

/// The networks that can be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// 18 layers, 11.7 million parameters at 1000 classes.
    ResNet18,
    /// 34 layers, 21.8 million parameters at 1000 classes.
    ResNet34,
}

impl Architecture {
    /// The name in recipes and in torchvision: `resnet18`, `resnet34`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResNet18 => "resnet18",
            Self::ResNet34 => "resnet34",
        }
    }

    /// How many blocks each of the four stages has.
    fn stage_blocks(self) -> [usize; 4] {
        match self {
            Self::ResNet18 => [2, 2, 2, 2],
            Self::ResNet34 => [3, 4, 6, 3],
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A network that sorts images into classes.
pub trait Classifier: Send {
    /// Images, N x 3 x H x W float32 (normalised), to logits, N x classes.
    ///
    /// With `train`, batch normalisation uses the batch's statistics and moves the running ones. Whether a graph for the
    /// backward pass is kept is the caller's choice, by torch's gradient mode.
    ///
    /// # Errors
    /// [`ModelError::Input`] for another shape, [`ModelError::Batch`] for a training micro-batch below
    /// [`Classifier::min_micro_batch`], and those of libtorch.
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor, ModelError>;

    /// The fewest samples that a training micro-batch of square images may have: batch normalisation needs two values
    /// per channel, so 2 where the last feature map is a single pixel, else 1.
    fn min_micro_batch(&self, image_size: usize) -> usize;
}

/// Builds a network with freshly drawn weights, registering its tensors in the order of torchvision's `state_dict`.
///
/// # Errors
/// [`ModelError::NoClasses`], [`ModelError::DuplicateName`] if the registry holds a model already, and those of libtorch.
pub fn build(
    arch: Architecture,
    classes: usize,
    registry: &mut Registry,
) -> Result<Box<dyn Classifier>, ModelError> {
    if classes == 0 {
        return Err(ModelError::NoClasses);
    }
    // More classes than i64 can count could not be allocated either; libtorch then says so.
    let classes = i64::try_from(classes).unwrap_or(i64::MAX);
    Ok(Box::new(resnet::ResNet::new(arch, classes, registry)?))
}
