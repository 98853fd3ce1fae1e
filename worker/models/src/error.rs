//! What can go wrong with a model: in libtorch, in how it is built or called, and in a file of weights.

use std::io;
use std::path::{Path, PathBuf};

use dtrain_torch_shim::ShimError;
use safetensors::Dtype;
use tch::TchError;
use thiserror::Error;

use super::mismatch::Mismatch;

/// An error of building, running, loading or saving a model.
#[derive(Debug, Error)]
pub enum ModelError {
    /// libtorch refused an operation; out of memory arrives here too.
    #[error(transparent)]
    Torch(#[from] TchError),

    /// Two entries of one model were given the same name: a mistake in the model's code.
    #[error("the model has two tensors named `{0}`")]
    DuplicateName(String),

    /// A classifier or segmenter was asked for without classes.
    #[error("a network that tells classes apart needs at least 1 class")]
    NoClasses,

    /// A network over images was asked for without input channels.
    #[error("a network over images needs at least 1 input channel")]
    NoChannels,

    /// A setting of the recipe makes no network.
    #[error("`{key} = {value}`: {reason}")]
    Setting {
        /// The recipe's key, such as `model.heads`.
        key: &'static str,
        /// Its value.
        value: usize,
        /// Why it cannot be, and what can, in one sentence.
        reason: String,
    },

    /// A text of so many tokens is longer than the model can look back.
    #[error(
        "a text of {0} tokens is longer than the model's context: give it at most {1} at a time, or raise \
         `model.context`"
    )]
    Context(i64, i64),

    /// The other participants of a step could not be reached for batch normalisation.
    #[error("batch normalisation over all participants failed: {0}")]
    Sync(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// The segment of this name, computed again in backward, gave something else than in the forward pass.
    #[error(
        "`{0}` was computed again in backward and gave {1}. Its forward pass draws random numbers that are not \
         torch's, or changes what it computes with; mend that, or set memory.recompute = \"off\""
    )]
    Recomputed(String, String),

    /// What the model takes, and the shape that it was given.
    #[error("the model takes {0}, but was given a tensor of shape {1:?}")]
    Input(String, Vec<i64>),

    /// A training micro-batch is too small for this batch normalisation, whose input has this shape.
    #[error(
        "the training micro-batch is too small: `{0}` normalises each channel over the batch and needs at least \
         2 values per channel, but its input has the shape {1:?}. Use micro-batches of 2 or more, or larger images."
    )]
    Batch(String, Vec<i64>),

    /// A file of weights could not be read, written or used.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl From<ShimError> for ModelError {
    fn from(error: ShimError) -> Self {
        Self::Torch(TchError::Torch(error.to_string()))
    }
}

/// An error with a file of weights.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct WeightsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: WeightsProblem,
}

impl WeightsError {
    pub(super) fn new(path: &Path, problem: WeightsProblem) -> Self {
        let path = path.to_owned();
        Self { path, problem }
    }
}

/// What can be wrong with a file of weights.
#[derive(Debug, Error)]
pub enum WeightsProblem {
    /// The file could not be opened or read.
    #[error("the weights cannot be read: {0}")]
    Read(io::Error),

    /// The file is not of the safetensors format.
    #[error("not a safetensors file: {0}")]
    Format(String),

    /// The file has so many bytes, and its header describes another number, the header included.
    #[error(
        "the file is {} ({} bytes, its header describes {}). Fetch or write it again.",
        if .0 < .1 { "cut short" } else { "too long" }, .0, .1
    )]
    Size(u64, u64),

    /// The file has no tensor of this name.
    #[error("the file has no tensor named `{0}`")]
    NoTensor(String),

    /// A tensor's number format has no counterpart in libtorch.
    #[error("the tensor `{0}` has the type {1}, which dtrain cannot read")]
    Dtype(String, Dtype),

    /// Two tensors of the file come to have one name, the third.
    #[error("model.weights_rename gives `{0}` and `{1}` one name, `{2}`; make its patterns narrower")]
    Renamed(String, String, String),

    /// The file holds two different tensors where the model has one under two names, its own first.
    #[error(
        "`{1}` is not equal to `{0}`, and the model has one tensor for both. Weights of a model that was trained with \
         two cannot be used."
    )]
    Untied(String, String),

    /// The file's tensors are not those of the model.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
}
