//! Image classification: cross-entropy on the logits, and how many samples were classified rightly.

use tch::{Kind, Reduction, Tensor};

use super::{Batch, Loss, Mode, Task, TaskError};
use crate::engine::Status;
use crate::models::Classifier;

/// The task `classify`.
pub struct Classify {
    model: Box<dyn Classifier>,
    image_size: usize,
}

impl Classify {
    /// Trains `model` on square images of `image_size` pixels.
    pub fn new(model: Box<dyn Classifier>, image_size: usize) -> Self {
        Self { model, image_size }
    }
}

impl Task for Classify {
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let labels = batch.field("label")?;
        let logits = self.model.forward(batch.field("image")?, mode == Mode::Train)?;
        let losses = logits.f_cross_entropy_loss(labels, None::<Tensor>, Reduction::None, -100, 0.0)?;
        let sum = (losses.f_mul(&batch.weights)?).f_sum(Kind::Float)?;
        let right = logits.f_argmax(1, false)?.f_eq_tensor(labels)?;
        let correct = right
            .f_to_kind(Kind::Float)?
            .f_mul(&batch.weights)?
            .f_sum(Kind::Double)?;
        let loss_sum = f64::try_from(sum.f_detach()?)?;
        let status = Status {
            loss_sum,
            weight: batch.weight,
            correct: f64::try_from(correct)?,
            non_finite: f64::from(u8::from(!loss_sum.is_finite())),
            ..Status::default()
        };
        Ok(Loss { sum, status })
    }

    fn min_micro_batch(&self) -> usize {
        self.model.min_micro_batch(self.image_size)
    }
}
