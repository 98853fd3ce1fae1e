//! Tasks: what turns a micro-batch into a loss. The engine knows nothing of models; a task knows nothing of ranks.

mod classify;

use tch::{Device, TchError, Tensor};

pub use classify::Classify;

use crate::data::{self, Column};
use crate::engine::Status;
use crate::models::ModelError;

/// A micro-batch of N samples on its device.
#[derive(Debug)]
pub struct Batch {
    /// Names and values, N x the field's shape: float32 or int64.
    fields: Vec<(&'static str, Tensor)>,
    /// N weights, float32: 1, or 0 for a sample that could not be read.
    pub weights: Tensor,
    /// The sum of the weights.
    pub weight: f64,
}

impl Batch {
    /// Copies a decoded batch to `device`. A copy to a GPU goes by pinned memory and is not waited for: what is computed
    /// from it is queued behind it.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn new(decoded: &data::Batch, device: Device) -> Result<Self, TchError> {
        let samples = decoded.weights.len() as i64;
        let mut fields = Vec::with_capacity(decoded.fields.len());
        for (field, column) in decoded.fields.iter().zip(&decoded.columns) {
            let mut shape = vec![samples];
            shape.extend(field.shape.iter().map(|&length| length as i64));
            let values = match column {
                Column::F32(values) => Tensor::f_from_slice(values)?,
                Column::I64(values) => Tensor::f_from_slice(values)?,
            };
            fields.push((field.name, place(values.f_view(&*shape)?, device)?));
        }
        Ok(Self {
            fields,
            weights: place(Tensor::f_from_slice(&decoded.weights)?, device)?,
            weight: decoded.weights.iter().map(|&weight| f64::from(weight)).sum(),
        })
    }

    /// The values of a field: N x the field's shape.
    ///
    /// # Errors
    /// [`TaskError::NoField`] if the data set has none of that name: it is not one for this task.
    pub fn field(&self, name: &'static str) -> Result<&Tensor, TaskError> {
        let found = self.fields.iter().find(|(known, _)| *known == name);
        found.map(|(_, values)| values).ok_or_else(|| TaskError::NoField {
            name,
            fields: self.fields.iter().map(|(known, _)| *known).collect(),
        })
    }
}

/// Moves a tensor that lies in ordinary memory of the host.
fn place(values: Tensor, device: Device) -> Result<Tensor, TchError> {
    if !device.is_cuda() {
        return values.f_to_device(device);
    }
    // libtorch's allocator of pinned memory holds on to a freed block until the copy out of it is done.
    let pinned = values.f_pin_memory(device)?;
    pinned.f_to_device_(device, pinned.kind(), true, false)
}

/// Why a task cannot give a loss.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// In the model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// In a tensor operation; out of memory arrives here too.
    #[error(transparent)]
    Torch(#[from] TchError),
    /// The data has not what the task needs.
    #[error("the data has no field `{name}`, only `{}`; set task and data.kind to ones that go together", fields.join("`, `"))]
    NoField {
        /// What the task asked for.
        name: &'static str,
        /// What there is.
        fields: Vec<&'static str>,
    },
}

/// A micro-batch's loss.
#[derive(Debug)]
pub struct Loss {
    /// The weighted sum of the samples' losses: a scalar on the autograd graph.
    pub sum: Tensor,
    /// What it adds to the step's status.
    pub status: Status,
}

/// Whether a batch teaches or tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Gradients are recorded; normalisation uses the batch's statistics and moves the running ones.
    Train,
    /// Nothing is recorded or moved.
    Evaluate,
}

/// What a run trains.
pub trait Task {
    /// The loss of a micro-batch, and what was right of it.
    ///
    /// # Errors
    /// Where memory runs out, or the batch does not fit the model.
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError>;

    /// The fewest samples that a training micro-batch may have.
    fn min_micro_batch(&self) -> usize;
}

#[cfg(test)]
mod tests;
