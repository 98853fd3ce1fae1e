//! Binary cross-entropy of any number of classes, as `torch.nn.BCEWithLogitsLoss`.

use tch::{Kind, Reduction, TchError, Tensor};

use crate::loss::sample_means;

/// Returns the mean over the classes of the binary cross-entropies of each sample of `logits`, N x K, for the classes
/// `labels`, N x K float32: 1 for each class of the sample, else 0.
pub fn binary_cross_entropies(logits: &Tensor, labels: &Tensor) -> Result<Tensor, TchError> {
    let logits = logits.f_to_kind(Kind::Float)?;
    let none = None::<Tensor>;
    sample_means(&logits.f_binary_cross_entropy_with_logits(
        labels,
        none.as_ref(),
        none.as_ref(),
        Reduction::None,
    )?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Values of torch.nn.BCEWithLogitsLoss(reduction="none") of PyTorch 2.11 in float64, and their means; large logits do
    /// not overflow.
    #[test]
    fn losses_are_those_of_pytorch() {
        let logits = Tensor::from_slice(&[0f32, 1.5, -2.25, 88.5, -200.0, 0.125]).view([2, 3]);
        let labels = Tensor::from_slice(&[1f32, 0.0, 1.0, 1.0, 1.0, 0.0]).view([2, 3]);
        let losses = Vec::<f32>::try_from(binary_cross_entropies(&logits, &labels).unwrap()).unwrap();
        for (found, expected) in losses.iter().zip(EXPECTED) {
            assert!((f64::from(*found) - expected).abs() < 1e-6 * expected, "{found} {expected}");
        }
    }

    const EXPECTED: [f64; 2] = [1.581_589_005_819_815, 66.919_199_678_438_06];
}
