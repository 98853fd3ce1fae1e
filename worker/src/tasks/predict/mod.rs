//! Predictions: what a task predicts of samples without targets, and how it is built from a checkpoint alone.

mod inputs;
mod named;

pub use self::inputs::{Saved, Support, Unlabelled, columns, text_rules};
pub(super) use self::named::{class_names, probabilities};
use super::TaskError;
use super::forward::Forward;
use crate::data::{Field, Vocabulary};
use tch::Tensor;

/// Returns the number of tokens of a text in samples of these fields.
pub(super) fn context_of(fields: &[Field]) -> usize {
    let tokens = fields.iter().find(|field| field.name == "tokens");
    tokens.and_then(|field| field.shape.first().copied()).unwrap_or(1)
}

/// What a task predicts of a sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// A probability of each class, by name: N x K.
    Classes(Vec<String>),
    /// A probability of each class for every pixel: N x K x height x width.
    Masks {
        /// K.
        classes: usize,
        /// The value of pixels that no class can be said of.
        ignore: u16,
    },
    /// Numbers by name, in the unit of the targets: N x K.
    Numbers(Vec<String>),
    /// A number for each pixel, in the unit of the targets: N x height x width.
    Maps {
        /// The number of a black pixel, as `data.target_offset`.
        black: f32,
        /// How much more a white pixel is, as `data.target_scale`.
        white: f32,
    },
    /// The logits of the token after each token: N x T x V.
    Tokens {
        /// The tokens and their numbers.
        vocabulary: Vocabulary,
        /// The most tokens that the network attends to.
        context: usize,
        /// Whether the network takes exactly `context` tokens.
        is_padded: bool,
    },
    /// Only the outputs that are asked for.
    Outputs,
}

/// The predictions of a task. Samples of weight 0 could not be read; their values are ignored.
pub trait Predict {
    /// Returns what is predicted.
    fn form(&self) -> Form;

    /// Returns the network.
    fn network(&self) -> &dyn Forward;

    /// Returns the number of the output that is predicted.
    fn output(&self) -> usize;

    /// Returns the values of [`Predict::form`], float32, from all outputs. The mean of several, such as those of mirrored
    /// images, is a prediction too.
    ///
    /// # Errors
    /// If memory runs out.
    fn values(&self, outputs: &[Tensor]) -> Result<Tensor, TaskError>;
}
