//! The sigmoid loss of SigLIP: Zhai et al. 2023, arXiv 2303.15343.

use dtrain_recipe::losses::Siglip;
use tch::{Kind, TchError, Tensor};

use super::{OverStep, mean, unit};
use crate::Wanted;

/// The sum over all N x N pairs of the logistic loss, divided by N. The label of a left vector with its partner is
/// 1, that of every other pair -1. Vectors are normalised here.
impl OverStep for Siglip {
    fn takes(&self) -> Vec<(&str, Wanted)> {
        vec![
            (&self.left, Wanted::VECTORS),
            (&self.right, Wanted::VECTORS),
            (&self.scale, Wanted::Number),
            (&self.bias, Wanted::Number),
        ]
    }

    fn mean(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let (left, right, scale, bias) = (values[0], values[1], values[2], values[3]);
        let cosines = unit(left, weights)?.f_matmul(&unit(right, weights)?.f_transpose(0, 1)?)?;
        let logits = cosines.f_mul(scale)?.f_add(bias)?;
        let samples = logits.size()[0];
        let labels =
            Tensor::f_eye(samples, (Kind::Float, logits.device()))?.f_mul_scalar(2.0)?.f_sub_scalar(1.0)?;
        let of_pairs = logits.f_mul(&labels)?.f_log_sigmoid()?.f_neg()?;
        let of_samples = of_pairs.f_mul(weights)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Float)?;
        mean(&of_samples, weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parity::compare;

    #[test]
    fn the_loss_is_that_of_pytorch() {
        compare(&Siglip::default(), "siglip", &["left", "right", "scale", "bias"]);
    }
}
