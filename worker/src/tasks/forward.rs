//! What predictions need of a network.

use tch::Tensor;

use super::{Batch, TaskError};

/// A network, in evaluation.
pub trait Forward {
    /// Returns the names of its outputs.
    fn output_names(&self) -> Vec<&str>;

    /// Returns the fields that it takes.
    fn input_names(&self) -> Vec<&str>;

    /// Returns the fields on whose values these outputs depend, by the numbers of the outputs.
    fn inputs_of(&self, outputs: &[usize]) -> Vec<&str>;

    /// Computes all outputs of a batch, without gradients, in the order of [`Forward::output_names`].
    ///
    /// # Errors
    /// If memory runs out, or the batch does not fit the model.
    fn forward(&self, batch: &Batch) -> Result<Vec<Tensor>, TaskError>;
}
