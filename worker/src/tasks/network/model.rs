//! A network of a task: a built-in one, or an exported program.

use super::{Network, Outputs};
use crate::models::{Classifier, Exported};
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

    /// Returns the fewest samples of a training micro-batch of images of this size.
    pub(in crate::tasks) fn min_micro_batch(&self, image_size: usize) -> usize {
        match self {
            Self::Built(model) => model.min_micro_batch(image_size),
            Self::Exported(network) => network.exported().min_micro_batch(),
        }
    }
}

impl<B> Model<B> {
    pub(in crate::tasks) fn program(&self) -> Option<&Exported> {
        self.exported().map(Network::exported)
    }

    pub(in crate::tasks) fn micro_batch_warning(&self) -> Option<String> {
        self.exported().and_then(Network::micro_batch_warning)
    }

    pub(in crate::tasks) fn is_capturable(&self) -> bool {
        !self.exported().is_some_and(Network::draws_random_numbers)
    }

    /// Returns ", " and the outputs of an exported program that have no loss, or nothing.
    pub(in crate::tasks) fn unused_outputs(&self) -> String {
        self.exported().map_or_else(String::new, |network| network.unused_outputs(&[]))
    }

    pub(in crate::tasks) fn exported(&self) -> Option<&Network> {
        match self {
            Self::Built(_) => None,
            Self::Exported(network) => Some(network),
        }
    }
}
