//! Predictions of programs.

use tch::Tensor;

use super::forward::Forward;
use super::predict::Form;
use super::program::Program;
use super::{Predict, TaskError};

impl Predict for Program {
    fn form(&self) -> Form {
        self.predicted.as_ref().map_or(Form::Outputs, |predicted| predicted.form.clone())
    }

    fn network(&self) -> &dyn Forward {
        &self.network
    }

    fn output(&self) -> usize {
        self.predicted.as_ref().map_or(0, |predicted| predicted.at)
    }

    fn values(&self, outputs: &[Tensor]) -> Result<Tensor, TaskError> {
        let predicted = self.predicted.as_ref().ok_or(TaskError::NoPrediction)?;
        Ok(predicted.values(outputs)?)
    }
}
