//! The predictions of a program that returns its loss: those of an output with a usual name, else its outputs as they are.

use tch::Tensor;

use super::forward::Forward;
use super::network::MAIN_OUTPUTS;
use super::predict::{Form, class_names, context_of, probabilities};
use super::program::Program;
use super::{Mode, Predict, TaskError};
use crate::data::Vocabulary;
use crate::models::Port;

impl Program {
    /// Returns the number of the output with a usual name of logits.
    fn logits(&self) -> Option<usize> {
        let ports = self.network.ports(Mode::Evaluate);
        MAIN_OUTPUTS.iter().find_map(|name| ports.iter().position(|port| port.name == *name))
    }

    /// Returns what logits of this shape predict.
    fn form_of(&self, port: &Port) -> Form {
        let vocabulary = self.facts.extra["vocabulary"].clone();
        let vocabulary = serde_json::from_value::<Vocabulary>(vocabulary).ok().filter(|_| self.takes_prompts);
        match (port.shape.as_slice(), vocabulary) {
            ([None, _, _], Some(vocabulary)) => {
                let context = context_of(self.facts.train.fields());
                Form::Tokens { vocabulary, context, is_padded: true }
            }
            ([None, classes], None) if self.facts.classes > 0 => {
                let outputs = classes.map_or(self.facts.classes, |classes| classes as usize);
                Form::Classes(class_names(&self.facts.class_names, outputs))
            }
            _ => Form::Outputs,
        }
    }
}

impl Predict for Program {
    fn form(&self) -> Form {
        let port = self.logits().map(|at| &self.network.ports(Mode::Evaluate)[at]);
        port.map_or(Form::Outputs, |port| self.form_of(port))
    }

    fn network(&self) -> &dyn Forward {
        &self.network
    }

    fn values(&self, outputs: &[Tensor]) -> Result<Tensor, TaskError> {
        let logits = &outputs[self.logits().unwrap_or_default()];
        match self.form() {
            Form::Classes(_) => Ok(probabilities(logits)?),
            _ => Ok(logits.shallow_clone()),
        }
    }
}
