//! The supervised contrastive loss: Khosla et al. 2020, arXiv 2004.11362.

use dtrain_recipe::losses::Supcon;
use tch::{Kind, TchError, Tensor};

use super::{NOTHING, OverStep, absent, mean, unit};
use crate::Wanted;

/// The mean over the samples of minus the mean log-likelihood of the others of its class among all others (L_out of
/// the paper). A sample alone in its class has the loss 0. Vectors are normalised here.
impl OverStep for Supcon {
    fn takes(&self) -> Vec<(&str, Wanted)> {
        vec![(&self.vectors, Wanted::VECTORS), (&self.classes, Wanted::Classes)]
    }

    fn mean(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let (vectors, classes) = (values[0], values[1]);
        let vectors = unit(vectors, weights)?;
        let logits = vectors.f_matmul(&vectors.f_transpose(0, 1)?)?.f_mul_scalar(1.0 / self.temperature)?;
        let samples = logits.size()[0];
        let itself = Tensor::f_eye(samples, (Kind::Bool, logits.device()))?;
        let others = logits.f_masked_fill(&itself.f_logical_or(&absent(weights)?)?, NOTHING)?;
        let likelihood = logits.f_sub(&others.f_logsumexp([1i64].as_slice(), true)?)?;
        let same = classes.f_unsqueeze(1)?.f_eq_tensor(&classes.f_unsqueeze(0)?)?;
        let same = same.f_logical_and(&itself.f_logical_not()?)?.f_to_kind(Kind::Float)?.f_mul(weights)?;
        let sum = |values: &Tensor| values.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float);
        mean(&sum(&likelihood.f_mul(&same)?)?.f_div(&sum(&same)?.f_clamp_min(1.0)?)?.f_neg()?, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parity::compare;

    #[test]
    fn the_loss_is_that_of_pytorch() {
        compare(&Supcon::default(), "supcon", &["left", "classes"]);
    }
}
