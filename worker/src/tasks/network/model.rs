//! A network of a task: a built-in one, or an exported program.

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
    /// Computes logits.
    pub(in crate::tasks) fn logits(&self, batch: &Batch, mode: Mode) -> Result<Outputs, TaskError> {
        match self {
            Self::Built(model) => {
                Ok(Outputs::only(model.forward(batch.field("image")?, mode == Mode::Train)?))
            }
            Self::Exported(network) => network.outputs(batch, mode),
        }
    }
}
