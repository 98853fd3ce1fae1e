//! Cross-entropy of classes, as `torch.nn.CrossEntropyLoss`.

use dtrain_recipe::sample_losses::CrossEntropy;
use tch::{Kind, Reduction, TchError, Tensor};

use super::of_samples::{Elements, OfClasses, OfSamples};

impl OfSamples for CrossEntropy {
    fn of_classes(&self) -> Option<&dyn OfClasses> {
        Some(self)
    }
}

impl OfClasses for CrossEntropy {
    fn losses(
        &self,
        logits: &Tensor,
        elements: &Elements<'_>,
        _weights: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        // With smoothing, a loss has a part of each logit, with the weight of its class.
        let class_weights = elements.weights_of(logits.size()[1])?;
        let logits = match (&class_weights, self.smoothing) {
            (None, 0.0) => logits.shallow_clone(),
            _ => logits.f_to_kind(Kind::Float)?,
        };
        logits.f_cross_entropy_loss(elements.classes, class_weights, Reduction::None, -100, self.smoothing)
    }
}
