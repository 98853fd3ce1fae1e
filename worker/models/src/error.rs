//! What can go wrong with a model: in libtorch, in how it is built or called, and in a file of weights.

use std::path::PathBuf;

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
    #[error("the model has two tensors named `{name}`")]
    DuplicateName {
        /// The full name, such as `layer1.0.conv1.weight`.
        name: String,
    },

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

/// An error with a file of weights. Every variant names the file.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The file could not be opened or read.
    #[error("{}: the weights cannot be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },

    /// The file could not be written.
    #[error("{}: the weights cannot be written: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },

    /// The file is not of the safetensors format.
    #[error("{}: not a safetensors file: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What in it breaks the format.
        reason: String,
    },

    /// The file's own header promises more or fewer bytes than the file has.
    #[error(
        "{}: the file is {} ({actual} bytes, its header describes {expected}). Fetch or write it again.",
        path.display(), if actual < expected { "cut short" } else { "too long" }
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes the header describes, the header included.
        expected: u64,
        /// Bytes the file has.
        actual: u64,
    },

    /// The file has no tensor of the name asked for.
    #[error("{}: the file has no tensor named `{name}`", path.display())]
    NoTensor {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        name: String,
    },

    /// A tensor's number format has no counterpart in libtorch.
    #[error("{}: the tensor `{name}` has the type {dtype}, which dtrain cannot read", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type as the format names it.
        dtype: String,
    },

    /// A tensor cannot be written: its type is not one of the format's, or the header would be too long.
    #[error("{}: the tensors cannot be written as safetensors: {reason}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },

    /// Two tensors of the file come to have one name.
    #[error(
        "{}: model.weights_rename gives `{first}` and `{second}` one name, `{name}`; make its patterns narrower",
        path.display()
    )]
    Renamed {
        /// The file.
        path: PathBuf,
        /// A tensor in the file.
        first: String,
        /// Another one.
        second: String,
        /// The name that both would have.
        name: String,
    },

    /// The file holds two different tensors where the model has one under two names.
    #[error(
        "{}: `{second}` is not equal to `{first}`, and the model has one tensor for both. Weights of a model that was \
         trained with two cannot be used.",
        path.display()
    )]
    Untied {
        /// The file.
        path: PathBuf,
        /// The name under which the model has the tensor.
        first: String,
        /// The other name.
        second: String,
    },

    /// The file is readable, but its tensors are not those of the model.
    #[error("{}: {mismatch}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What differs; boxed, as it is far larger than the other variants.
        mismatch: Box<Mismatch>,
    },
}
