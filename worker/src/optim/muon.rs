//! Muon (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon>), as torch.optim.Muon: momentum whose matrix is
//! orthogonalized before it updates the parameter.

use dtrain_recipe::{AdjustLr, NewtonSchulz};
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::fused::{ScaleAndSkip, addmm};
use tch::{Kind, Tensor};

use super::UpdateFigures;
use super::elementwise::{unscaled, write};

/// The coefficients of the quintic iteration, which raise small singular values fastest.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// The number of iterations.
const STEPS: usize = 5;

/// The least norm that a matrix is divided by.
const EPS: f64 = 1e-7;

/// The update rule of whole matrices. Constant during a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Muon {
    /// Decay rate of the mean of the gradient.
    pub momentum: f64,
    /// Whether the gradient is moved towards its mean, in place of the mean alone.
    pub nesterov: bool,
    /// How the learning rate depends on the shape.
    pub adjust_lr: AdjustLr,
    /// The precision of the products.
    pub newton_schulz: NewtonSchulz,
}

impl Muon {
    /// The name of its column, as in checkpoints.
    pub(super) const MOMENT: &'static str = "momentum_buffer";

    /// Updates `data` and `mean` from `grad`, all of one shape: the first dimension has the outputs. Changes nothing if it fails, or
    /// if the device skips the update.
    pub(super) fn update(
        &self,
        [data, grad, mean]: [&Tensor; 3],
        UpdateFigures { lr, weight_decay, .. }: UpdateFigures,
        scale_and_skip: Option<ScaleAndSkip<'_>>,
    ) -> Result<(), ShimError> {
        let grad = unscaled(grad, scale_and_skip)?;
        let new_mean = mean.f_lerp(&grad, 1.0 - self.momentum)?;
        let direction = match self.nesterov {
            true => grad.f_lerp(&new_mean, self.momentum)?,
            false => new_mean.shallow_clone(),
        };
        let matrix = direction.f_flatten(1, -1)?;
        let (rows, columns) = matrix.size2()?;
        let change = orthogonalized(&matrix, self.newton_schulz)?.f_to_kind(data.kind())?;
        let change = change.f_mul_scalar(lr * self.lr_factor(rows as f64, columns as f64))?;
        let new_data =
            data.f_mul_scalar(1.0 - lr * weight_decay)?.f_sub(&change.f_reshape(data.size().as_slice())?)?;
        Ok(write([data, mean].into_iter(), vec![new_data, new_mean], scale_and_skip)?)
    }

    /// Returns the factor of the learning rate for a matrix of this shape.
    fn lr_factor(&self, rows: f64, columns: f64) -> f64 {
        match self.adjust_lr {
            AdjustLr::Original => (rows / columns).max(1.0).sqrt(),
            AdjustLr::MatchRmsAdamW => 0.2 * rows.max(columns).sqrt(),
        }
    }
}

/// Returns about `U V^T` of a matrix `U S V^T`: with singular values between about 0.5 and 1.5.
fn orthogonalized(matrix: &Tensor, precision: NewtonSchulz) -> Result<Tensor, ShimError> {
    let kind = match precision {
        NewtonSchulz::Bf16 => Kind::BFloat16,
        NewtonSchulz::Full => matrix.kind(),
    };
    let (rows, columns) = matrix.size2()?;
    let transposed =
        |tensor: &Tensor| if rows > columns { tensor.f_tr() } else { Ok(tensor.shallow_clone()) };
    let mut x = transposed(&matrix.f_to_kind(kind)?)?;
    // The norm is at least the largest singular value.
    x = x.f_div(&x.f_norm()?.f_clamp_min(EPS)?)?;
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..STEPS {
        let gram = x.f_mm(&x.f_tr()?)?;
        let update = addmm(&gram, [&gram, &gram], b, c)?;
        x = addmm(&x, [&update, &x], a, 1.0)?;
    }
    Ok(transposed(&x)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::Device;

    use super::*;

    #[test]
    fn singular_values_come_near_to_one() {
        for (rows, columns) in [(8, 8), (5, 30), (64, 3), (1, 7), (7, 1)] {
            let matrix = Tensor::randn([rows, columns], (Kind::Double, Device::Cpu)) * 1e-3;
            let found = orthogonalized(&matrix, NewtonSchulz::Full).unwrap();
            assert_eq!(found.size(), matrix.size());
            let (u, s, v) = matrix.svd(true, true);
            let (_, values, _) = found.svd(true, false);
            let large = s.double_value(&[0]) / 50.0;
            for (at, value) in Vec::<f64>::try_from(values).unwrap().into_iter().enumerate() {
                if s.double_value(&[at as i64]) > large {
                    assert!((0.5..1.3).contains(&value), "{rows} x {columns}: {value}");
                }
            }
            // The singular vectors stay: U^T found V is diagonal.
            let diagonal = u.tr().mm(&found).mm(&v);
            let off = (&diagonal - diagonal.diagonal(0, 0, 1).diag_embed(0, 0, 1)).abs().max();
            assert!(off.double_value(&[]) < 1e-9, "{off:?}");
        }
        let zero = Tensor::zeros([3, 4], (Kind::Float, Device::Cpu));
        assert_eq!(
            orthogonalized(&zero, NewtonSchulz::Bf16).unwrap().abs().sum(Kind::Float).double_value(&[]),
            0.0
        );
    }

    #[test]
    fn the_rate_follows_the_shape() {
        let muon =
            |adjust_lr| Muon { momentum: 0.95, nesterov: true, adjust_lr, newton_schulz: NewtonSchulz::Bf16 };
        let original = muon(AdjustLr::Original);
        assert_eq!([original.lr_factor(16.0, 4.0), original.lr_factor(4.0, 16.0)], [2.0, 1.0]);
        let like_adamw = muon(AdjustLr::MatchRmsAdamW);
        assert_eq!([like_adamw.lr_factor(16.0, 4.0), like_adamw.lr_factor(4.0, 16.0)], [0.8, 0.8]);
    }
}
