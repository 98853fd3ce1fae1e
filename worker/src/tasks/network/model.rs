//! A network of a task: a built-in one, or an exported program.

use tch::Tensor;

use super::{Network, Outputs};
use crate::models::Classifier;
use crate::tasks::{Batch, Mode, TaskError};

pub(in crate::tasks) enum Model<B> {
    Built(B),
    Exported(Box<Network>),
}

/// A network over images.
pub(in crate::tasks) type ImageNetwork = Model<Box<dyn Classifier>>;

impl Model<Box<dyn Classifier>> {
    /// Computes all outputs; of a built-in network the logits.
    pub(in crate::tasks) fn run(&self, batch: &Batch, mode: Mode) -> Result<Vec<Tensor>, TaskError> {
        match self {
            Self::Built(model) => Ok(vec![model.forward(batch.field("image")?, mode == Mode::Train)?]),
            Self::Exported(network) => network.run_batch(batch, mode),
        }
    }

    /// Returns the logits among all outputs, and the auxiliary ones.
    pub(in crate::tasks) fn logits(&self, all: &[Tensor], mode: Mode) -> Outputs {
        match self {
            Self::Built(_) => Outputs::only(all[0].shallow_clone()),
            Self::Exported(network) => network.chosen_of(all, mode),
        }
    }
}
