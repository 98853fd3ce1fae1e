//! A network of a task: a built-in one, or an exported program.

use tch::{Device, Tensor};

use super::{Network, Outputs, Ports};
use crate::models::{Classifier, Gpt, Port};
use crate::tasks::forward::Forward;
use crate::tasks::{Batch, Mode, TaskError};

pub(in crate::tasks) enum Model<B> {
    Built(B),
    Exported(Box<Network>),
}

impl<B> Model<B> {
    /// Returns the outputs. `built`: that of a built-in network.
    pub(in crate::tasks) fn ports<'a>(&'a self, built: &'a [Port; 1], device: Device) -> Ports<'a> {
        match self {
            Self::Built(_) => Ports::built(built, device),
            Self::Exported(network) => Ports::of(network),
        }
    }
}

/// A network over images.
pub(in crate::tasks) type ImageNetwork = Model<Box<dyn Classifier>>;

impl Model<Box<dyn Classifier>> {
    /// Computes all outputs; of a built-in network the logits.
    pub(in crate::tasks) fn run(&self, batch: &Batch, mode: Mode) -> Result<Vec<Tensor>, TaskError> {
        match self {
            Self::Built(model) => {
                let outputs = vec![model.forward(batch.field("image")?, mode == Mode::Train)?];
                batch.offer_outputs(&outputs);
                Ok(outputs)
            }
            Self::Exported(network) => network.run_batch(batch, mode),
        }
    }

    /// Returns the number of classes in the logits, if it is more than that of the data may be.
    pub(in crate::tasks) fn classes(&self) -> Option<usize> {
        match self {
            Self::Built(_) => None,
            Self::Exported(network) => {
                network.main(Mode::Evaluate).shape.get(1).copied().flatten().map(|classes| classes as usize)
            }
        }
    }

    /// Returns the number of the logits among all outputs.
    pub(in crate::tasks) fn main_at(&self, mode: Mode) -> usize {
        match self {
            Self::Built(_) => 0,
            Self::Exported(network) => network.main_at(mode),
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

/// A built-in network of one input and one output, the logits.
pub(in crate::tasks) trait BuiltIn {
    /// The field that it takes.
    const INPUT: &'static str;

    fn logits(&self, input: &Tensor) -> Result<Tensor, TaskError>;
}

impl BuiltIn for Box<dyn Classifier> {
    const INPUT: &'static str = "image";

    fn logits(&self, input: &Tensor) -> Result<Tensor, TaskError> {
        Ok(self.forward(input, false)?)
    }
}

impl BuiltIn for Gpt {
    const INPUT: &'static str = "tokens";

    fn logits(&self, input: &Tensor) -> Result<Tensor, TaskError> {
        Ok(self.forward(input, false)?)
    }
}

impl<B: BuiltIn> Forward for Model<B> {
    fn output_names(&self) -> Vec<&str> {
        match self {
            Self::Built(_) => vec!["logits"],
            Self::Exported(network) => network.output_names(),
        }
    }

    fn input_names(&self) -> Vec<&str> {
        match self {
            Self::Built(_) => vec![B::INPUT],
            Self::Exported(network) => network.input_names(),
        }
    }

    fn inputs_of(&self, outputs: &[usize]) -> Vec<&str> {
        match self {
            Self::Built(_) => vec![B::INPUT],
            Self::Exported(network) => network.inputs_of(outputs),
        }
    }

    fn forward(&self, batch: &Batch) -> Result<Vec<Tensor>, TaskError> {
        match self {
            Self::Built(model) => Ok(vec![model.logits(batch.field(B::INPUT)?)?]),
            Self::Exported(network) => network.forward(batch),
        }
    }
}
