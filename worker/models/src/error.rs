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

    /// A text is longer than the model can look back.
    #[error(
        "a text of {length} tokens is longer than the model's context: give it at most {context} at a time, or raise \
         `model.context`"
    )]
    Context {
        /// Tokens given.
        length: i64,
        /// Tokens the model takes.
        context: i64,
    },

    /// The other participants of a step could not be reached for batch normalisation.
    #[error("batch normalisation over all participants failed: {source}")]
    Sync {
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// A segment that is computed again in backward is not what it was in the forward pass.
    #[error(
        "`{segment}` was computed again in backward and gave {what}. Its forward pass draws random numbers that are not \
         torch's, or changes what it computes with; mend that, or set memory.recompute = \"off\""
    )]
    Recomputed {
        /// The segment's name, such as `layer1.0`.
        segment: String,
        /// What differed, in words that go behind "gave".
        what: String,
    },

    /// A tensor given to the model has the wrong shape.
    #[error("the model takes {expected}, but was given a tensor of shape {got:?}")]
    Input {
        /// What the model takes, in words.
        expected: String,
        /// The shape it was given.
        got: Vec<i64>,
    },

    /// A training micro-batch is too small for batch normalisation.
    #[error(
        "the training micro-batch is too small: `{layer}` normalises each channel over the batch and needs at least \
         2 values per channel, but its input has the shape {shape:?}. Use micro-batches of 2 or more, or larger images."
    )]
    Batch {
        /// The name of the batch normalisation.
        layer: String,
        /// The shape of its input, N x C x H x W.
        shape: Vec<i64>,
    },

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

    /// The file could not be written.
    #[error("the weights cannot be written: {0}")]
    Write(io::Error),

    /// The file is not of the safetensors format.
    #[error("not a safetensors file: {0}")]
    Format(String),

    /// The file's own header promises more or fewer bytes than the file has.
    #[error(
        "the file is {} ({actual} bytes, its header describes {expected}). Fetch or write it again.",
        if actual < expected { "cut short" } else { "too long" }
    )]
    Size {
        /// Bytes the header describes, the header included.
        expected: u64,
        /// Bytes the file has.
        actual: u64,
    },

    /// The file has no tensor of this name.
    #[error("the file has no tensor named `{0}`")]
    NoTensor(String),

    /// A tensor's number format has no counterpart in libtorch.
    #[error("the tensor `{name}` has the type {dtype}, which dtrain cannot read")]
    Dtype {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: Dtype,
    },

    /// A tensor's type is not one of the format's, or the header would be too long.
    #[error("the tensors cannot be written as safetensors: {0}")]
    Unwritable(String),

    /// Two tensors of the file come to have one name.
    #[error(
        "model.weights_rename gives `{first}` and `{second}` one name, `{name}`; make its patterns narrower"
    )]
    Renamed {
        /// A tensor in the file.
        first: String,
        /// Another one.
        second: String,
        /// The name that both would have.
        name: String,
    },

    /// The file holds two different tensors where the model has one under two names.
    #[error(
        "`{second}` is not equal to `{first}`, and the model has one tensor for both. Weights of a model that was trained with \
         two cannot be used."
    )]
    Untied {
        /// The name under which the model has the tensor.
        first: String,
        /// The other name.
        second: String,
    },

    /// The file is readable, but its tensors are not those of the model.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
}
