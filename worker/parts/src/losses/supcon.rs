//! The supervised contrastive loss: Khosla et al. 2020, arXiv 2004.11362.

use tch::{Kind, TchError, Tensor};

use super::{NOTHING, absent, mean, unit};

/// Returns the mean over the samples of minus the mean log-likelihood of the others of its class among all others (L_out of
/// the paper). A sample alone in its class has the loss 0. `vectors`: N x D, normalised here. `classes`: N, int64.
pub fn supcon(
    vectors: &Tensor,
    classes: &Tensor,
    temperature: f64,
    weights: &Tensor,
) -> Result<Tensor, TchError> {
    let vectors = unit(vectors, weights)?;
    let logits = vectors.f_matmul(&vectors.f_transpose(0, 1)?)?.f_mul_scalar(1.0 / temperature)?;
    let samples = logits.size()[0];
    let itself = Tensor::f_eye(samples, (Kind::Bool, logits.device()))?;
    let others = logits.f_masked_fill(&itself.f_logical_or(&absent(weights)?)?, NOTHING)?;
    let likelihood = logits.f_sub(&others.f_logsumexp([1i64].as_slice(), true)?)?;
    let same = classes.f_unsqueeze(1)?.f_eq_tensor(&classes.f_unsqueeze(0)?)?;
    let same = same.f_logical_and(&itself.f_logical_not()?)?.f_to_kind(Kind::Float)?.f_mul(weights)?;
    let sum = |values: &Tensor| values.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float);
    mean(&sum(&likelihood.f_mul(&same)?)?.f_div(&sum(&same)?.f_clamp_min(1.0)?)?.f_neg()?, weights)
}
