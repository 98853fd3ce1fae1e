//! Programs of `torch.export`.

use std::path::Path;

use tch::{Kind, Tensor};

use super::error::ModelError;
use super::registry::Registry;

/// One input or output of a program.
#[derive(Debug, Clone)]
pub struct Port {
    /// The name.
    pub name: String,
    /// The dtype.
    pub kind: Kind,
    /// The shape; None: dynamic, as the batch.
    pub shape: Vec<Option<i64>>,
}

/// A program.
#[derive(Debug)]
pub struct Exported {}

#[allow(clippy::missing_errors_doc, missing_docs)]
impl Exported {
    pub fn load(path: &Path, _registry: &mut Registry) -> Result<Self, ModelError> {
        Err(ModelError::Input(format!("no exported program such as {}", path.display()), Vec::new()))
    }

    pub fn inputs(&self) -> &[Port] {
        &[]
    }

    pub fn outputs(&self) -> &[Port] {
        &[]
    }

    pub fn evaluation_outputs(&self) -> &[Port] {
        &[]
    }

    pub fn run(&self, _inputs: &[&Tensor], _train: bool) -> Result<Vec<Tensor>, ModelError> {
        Err(ModelError::NoClasses)
    }

    pub fn draws_random_numbers(&self) -> bool {
        false
    }

    pub fn min_micro_batch(&self) -> usize {
        1
    }
}
