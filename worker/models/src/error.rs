//! Errors of models: from libtorch, from settings and inputs, and from files of weights.

use std::io;
use std::path::{Path, PathBuf};

use dtrain_common::content::Content;
use dtrain_common::safetensors_file::Dtype;
use dtrain_torch_shim::ShimError;
use tch::TchError;
use thiserror::Error;

use super::exported_error::ExportedError;
use super::mismatch::{Mismatch, list_first};

/// An error of building, running, loading or saving a model.
#[derive(Debug, Error)]
pub enum ModelError {
    /// A libtorch operation failed, for example out of memory.
    #[error(transparent)]
    Torch(#[from] TchError),

    /// Two tensors of a model have the same name: a bug in the model's code.
    #[error("the model has two tensors named `{0}`")]
    DuplicateName(String),

    /// This weight cannot have an adapter: its shape.
    #[error("model.lora.match matches `{weight}`, and {reason}: narrow the globs")]
    NotAdaptable {
        /// The full name.
        weight: String,
        /// Why, as a clause.
        reason: String,
    },

    /// An operation cannot widen a weight that is held in fewer bytes.
    #[error(
        "model.frozen matches `{weight}`, and {operation} takes it in float32: leave it out of the globs"
    )]
    NotFrozen {
        /// The full name.
        weight: String,
        /// The operation.
        operation: String,
    },

    /// A classifier or segmenter without classes.
    #[error("a classifier or segmenter needs at least 1 class")]
    NoClasses,

    /// A network over images without input channels.
    #[error("a network for images needs at least 1 channel")]
    NoChannels,

    /// A setting of the recipe is invalid for this network.
    #[error("`{key} = {value}`: {reason}")]
    Setting {
        /// The recipe's key, such as `model.heads`.
        key: &'static str,
        /// Its value.
        value: usize,
        /// Why it is invalid, and a valid value, in one sentence.
        reason: String,
    },

    /// A text with this many tokens exceeds the model's context.
    #[error(
        "a text of {0} tokens exceeds the model's context of {1} tokens; shorten the text, or raise `model.context`"
    )]
    Context(i64, i64),

    /// Batch normalisation could not reach the other participants of a step.
    #[error("batch normalisation over all ranks failed: {0}")]
    Sync(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// The segment of this name gave another result when backward computed it again.
    #[error(
        "recomputing `{0}` in backward gave {1}: its forward pass draws random numbers outside torch, or changes its \
         own state; make it repeatable, or set memory.recompute = \"off\""
    )]
    Recomputed(String, String),

    /// The model takes the first, but got a tensor of the second, a shape.
    #[error("the model takes {0}, but got a tensor of shape {1:?}")]
    Input(String, Vec<i64>),

    /// A view that the program changes in place is impossible in this memory layout. Has the operation and libtorch's reason.
    #[error("{0}; the program changes this view in place: set model.memory_format = \"contiguous\"")]
    View(String),

    /// A training micro-batch is too small for this batch normalisation, whose input has this shape.
    #[error(
        "the training micro-batch is too small: `{0}` normalises each channel over the batch and needs at least \
         2 values per channel, but its input has the shape {1:?}. Use micro-batches of 2 or more, or larger images."
    )]
    Batch(String, Vec<i64>),

    /// The input of this batch normalisation has the first number of rows, which is no multiple of the micro-batch's samples.
    #[error(
        "`{0}` normalises {1} rows, which cannot be assigned to the {2} samples of the micro-batch: groups need equally many \
         rows for each sample. Set model.batchnorm = \"local\" or \"synced\"."
    )]
    Rows(String, i64, i64),

    /// This batch normalisation has several rows for each sample, which do not follow each other.
    #[error(
        "`{0}` normalises rows of one sample that do not follow each other, so they cannot be grouped by samples. Fold with the \
         batch first, as x.reshape(batch * frames, ...), or set model.batchnorm = \"local\" or \"synced\"."
    )]
    RowOrder(String),

    /// A file of weights could not be read, written or used.
    #[error(transparent)]
    Weights(#[from] WeightsError),

    /// A file of an exported program could not be read or used.
    #[error(transparent)]
    Exported(#[from] ExportedError),
}

impl From<ShimError> for ModelError {
    fn from(error: ShimError) -> Self {
        Self::Torch(TchError::Torch(error.to_string()))
    }
}

/// An error in a file of weights.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct WeightsError {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub problem: WeightsProblem,
}

impl WeightsError {
    pub(super) fn new(path: &Path, problem: WeightsProblem) -> Self {
        let path = path.to_owned();
        Self { path, problem }
    }
}

/// A problem with a file of weights.
#[derive(Debug, Error)]
pub enum WeightsProblem {
    /// The file could not be opened or read.
    #[error("the weights cannot be read: {0}; check the file system and its permissions")]
    Read(io::Error),

    /// The file is not a safetensors file.
    #[error("not a safetensors file: {0}; download or copy it again, or name another file")]
    Format(String),

    /// The file has another format: its name and a remedy.
    #[error("the file is {0}, not a safetensors file; {1}")]
    Foreign(Content, String),

    /// An index of sharded weights is invalid. Has a reason and a remedy.
    #[error("not an index of sharded weights: {0}")]
    Index(String),

    /// Files are missing beside their index: their names, and the number of all.
    #[error(
        "{} of the {} files of this index are missing in its folder: {}; download them into that folder", .0.len(), .1,
        list_first(.0, |name| format!("`{name}`"))
    )]
    NoShards(Vec<String>, usize),

    /// The index names a tensor, the first, that its file, the second, lacks.
    #[error(
        "the index lists `{0}` in {1}, which lacks it; download the index and its files again, of one version"
    )]
    NotInShard(String, String),

    /// A tensor, the first, of a listed file, the second, is not in the index.
    #[error(
        "{1} has the tensor `{0}`, which the index does not list; download the index and its files again, of one version"
    )]
    NotInIndex(String, String),

    /// Values of a tensor are not finite: its name, their number, and the first of them.
    #[error(
        "the tensor `{0}` has {1} values that are not finite (the first is {2}), so no loss can be finite; use weights from \
         before that training diverged, or other weights"
    )]
    NotFinite(String, u64, f64),

    /// The bytes of the file, and the different number that its header describes, including the header.
    #[error(
        "the file is {}: it has {} bytes, and its header describes {}; download or write it again",
        if .0 < .1 { "truncated" } else { "too long" }, .0, .1
    )]
    Size(u64, u64),

    /// The file has no tensor of this name.
    #[error("the file has no tensor named `{0}`")]
    NoTensor(String),

    /// libtorch has no dtype for this tensor's dtype.
    #[error(
        "the tensor `{0}` has the dtype {1}, which dtrain does not support; write it in float32 or bfloat16"
    )]
    Dtype(String, Dtype),

    /// Renaming gives the first two tensors the same name, the third.
    #[error("model.weights_rename renames both `{0}` and `{1}` to `{2}`; make its patterns more specific")]
    Renamed(String, String, String),

    /// The file has two different tensors for one tied tensor of the model. The model's name comes first.
    #[error(
        "`{1}` differs from `{0}`, but the model has one tensor for both; use weights of a model with tied tensors"
    )]
    Untied(String, String),

    /// The file's tensors differ from those of the model.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
}
