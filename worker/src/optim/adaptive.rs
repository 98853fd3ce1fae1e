//! Adaptive gradient clipping (Brock et al. 2021, arXiv 2102.06171), as timm's `adaptive_clip_grad`.

use dtrain_torch_shim::fused::ScaleAndSkip;
use tch::{TchError, Tensor};

/// The least norm of a unit's weights, so that zeros can be left.
const EPS: f64 = 1e-3;

/// The least norm that a gradient is divided by.
const LEAST_GRADIENT: f64 = 1e-6;

/// Scales the gradient of each unit of a parameter to at most `limit` times the norm of its weights. A unit is an entry of the first
/// dimension, of an output; a tensor of one dimension is one unit. The update divides the gradient by the scale afterwards.
pub(super) fn clip(
    grad: &Tensor,
    data: &Tensor,
    limit: f64,
    scale_and_skip: Option<ScaleAndSkip<'_>>,
) -> Result<(), TchError> {
    let most = unit_norms(data)?.f_clamp_min(EPS)?.f_mul_scalar(limit)?;
    let mut norms = unit_norms(grad)?;
    if let Some(ScaleAndSkip { scale, .. }) = scale_and_skip {
        norms = norms.f_div(&scale.f_to_kind(norms.kind())?)?;
    }
    let factor = most.f_div(&norms.f_clamp_min(LEAST_GRADIENT)?)?;
    let factor = factor.f_where_self(&norms.f_ge_tensor(&most)?, &factor.f_ones_like()?)?;
    tch::no_grad(|| grad.shallow_clone().f_mul_(&factor).map(drop))
}

fn unit_norms(tensor: &Tensor) -> Result<Tensor, TchError> {
    match tensor.dim() {
        0 | 1 => tensor.f_norm(),
        dims => {
            let others: Vec<i64> = (1..dims as i64).collect();
            tensor.f_norm_scalaropt_dim(2.0, others.as_slice(), true)
        }
    }
}
