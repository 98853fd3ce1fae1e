//! Cross-entropy of classes.

use tch::{Reduction, TchError, Tensor};

/// Returns the cross-entropy of each sample of `logits`, N x K, for the classes `labels`, N int64.
pub fn cross_entropies(logits: &Tensor, labels: &Tensor) -> Result<Tensor, TchError> {
    logits.f_cross_entropy_loss(labels, None::<Tensor>, Reduction::None, -100, 0.0)
}
