//! The sigmoid loss of SigLIP: Zhai et al. 2023, arXiv 2303.15343.

use tch::{Kind, TchError, Tensor};

use super::{mean, unit};

/// Returns the sum over all N x N pairs of the logistic loss, divided by N. The label of a left vector with its partner is
/// 1, that of every other pair -1. `left`, `right`: N x D, normalised here. `scale` and `bias`: one number each.
pub fn siglip(
    left: &Tensor,
    right: &Tensor,
    scale: &Tensor,
    bias: &Tensor,
    weights: &Tensor,
) -> Result<Tensor, TchError> {
    let cosines = unit(left, weights)?.f_matmul(&unit(right, weights)?.f_transpose(0, 1)?)?;
    let logits = cosines.f_mul(scale)?.f_add(bias)?;
    let samples = logits.size()[0];
    let labels =
        Tensor::f_eye(samples, (Kind::Float, logits.device()))?.f_mul_scalar(2.0)?.f_sub_scalar(1.0)?;
    let of_pairs = logits.f_mul(&labels)?.f_log_sigmoid()?.f_neg()?;
    let of_samples = of_pairs.f_mul(weights)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
    mean(&of_samples, weights)
}
