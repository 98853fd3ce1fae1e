//! Tasks: what turns a micro-batch into a loss. The engine knows nothing of models; a task knows nothing of ranks.

mod classify;

use tch::{Device, TchError, Tensor};

pub use classify::Classify;

use crate::data;
use crate::engine::Status;
use crate::models::ModelError;

/// A micro-batch on its device.
#[derive(Debug)]
pub struct Batch {
    /// N x 3 x H x W, float32, normalised.
    pub images: Tensor,
    /// N class numbers, int64.
    pub labels: Tensor,
    /// N weights, float32: 1, or 0 for an image that could not be read.
    pub weights: Tensor,
    /// The sum of the weights.
    pub weight: f64,
}

impl Batch {
    /// Copies a decoded batch to `device`. `image_size` is the side of its square images.
    ///
    /// # Errors
    /// Where memory runs out.
    pub fn new(decoded: &data::Batch, image_size: usize, device: Device) -> Result<Self, TchError> {
        let (samples, side) = (decoded.labels.len() as i64, image_size as i64);
        let images = Tensor::f_from_slice(&decoded.images)?.f_view([samples, 3, side, side])?;
        Ok(Self {
            images: images.f_to_device(device)?,
            labels: Tensor::f_from_slice(&decoded.labels)?.f_to_device(device)?,
            weights: Tensor::f_from_slice(&decoded.weights)?.f_to_device(device)?,
            weight: decoded.weights.iter().map(|&weight| f64::from(weight)).sum(),
        })
    }
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
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, ModelError>;

    /// The fewest samples that a training micro-batch may have.
    fn min_micro_batch(&self) -> usize;
}
