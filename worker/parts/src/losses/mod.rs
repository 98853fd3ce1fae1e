//! Losses over all samples of a step: each is the mean over N samples.
//!
//! `weights` has N weights, float32: 0 for a sample that must add nothing, else 1. No function reads values on the host, so
//! none waits for a device.

mod balance;
mod clip;
mod siglip;
mod supcon;
#[cfg(test)]
mod tests;

use tch::{Kind, TchError, Tensor};

pub use balance::balance;
pub use clip::clip;
pub use siglip::siglip;
pub use supcon::supcon;

/// A logit whose exponential is 0 beside any other. Infinity would make the derivative of a row without other logits NaN.
const NOTHING: f64 = -1e30;

/// Returns the rows, N x D, with length 1 in float32; rows of weight 0, which may have any values, with length 0.
fn unit(rows: &Tensor, weights: &Tensor) -> Result<Tensor, TchError> {
    let rows = rows.f_to_kind(Kind::Float)?.f_masked_fill(&absent(weights)?.f_unsqueeze(1)?, 0.0)?;
    let squares = rows.f_square()?.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Float)?;
    rows.f_mul(&squares.f_clamp_min(1e-24)?.f_rsqrt()?)
}

/// Returns which samples have weight 0.
fn absent(weights: &Tensor) -> Result<Tensor, TchError> {
    weights.f_eq(0.0)
}

/// Returns the mean of N numbers with these weights.
fn mean(values: &Tensor, weights: &Tensor) -> Result<Tensor, TchError> {
    values.f_mul(weights)?.f_sum(Kind::Float)?.f_div(&weights.f_sum(Kind::Float)?)
}
