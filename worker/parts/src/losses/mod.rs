//! Losses, a file each. Those over all samples of a step implement [`OverStep`] for their settings in a recipe.

// A new file needs no line here.
automod::dir!(pub "src/losses");

use dtrain_recipe::{StepLoss, each_step_loss};
use tch::{Kind, TchError, Tensor};

use crate::Wanted;

/// A loss over all samples of a step: the mean over N samples.
pub trait OverStep {
    /// Returns the names of the values that it takes, and what they must be.
    fn takes(&self) -> Vec<(&str, Wanted)>;

    /// Returns the mean loss, one number, from the `values` in the order of [`OverStep::takes`]. `weights` has N weights,
    /// float32: 0 for a sample that must add nothing and may have any values, else 1. It must not read values on the host,
    /// which would wait for a device.
    fn mean(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError>;
}

/// Returns the functions of a recipe's loss.
pub fn over_step(settings: &StepLoss) -> &dyn OverStep {
    each_step_loss!(settings, it => it)
}

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
