//! The contrastive loss of CLIP: Radford et al. 2021, arXiv 2103.00020.

use dtrain_recipe::losses::Clip;
use tch::{TchError, Tensor};

use super::{NOTHING, OverStep, absent, mean, unit};
use crate::Wanted;

/// The mean of two cross-entropies: of the right partner of each left vector among all right ones, and the other
/// way round. Vectors are normalised here, and cosines are multiplied by the scale.
impl OverStep for Clip {
    fn takes(&self) -> Vec<(&str, Wanted)> {
        vec![(&self.left, Wanted::VECTORS), (&self.right, Wanted::VECTORS), (&self.scale, Wanted::Number)]
    }

    fn mean(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let (left, right, scale) = (values[0], values[1], values[2]);
        let logits =
            unit(left, weights)?.f_matmul(&unit(right, weights)?.f_transpose(0, 1)?)?.f_mul(scale)?;
        let absent = absent(weights)?;
        let pairs = logits.f_diagonal(0, 0, 1)?;
        let side = |logits: &Tensor| {
            let among = logits.f_masked_fill(&absent, NOTHING)?.f_logsumexp([1i64].as_slice(), false)?;
            mean(&among.f_sub(&pairs)?, weights)
        };
        side(&logits)?.f_add(&side(&logits.f_transpose(0, 1)?)?)?.f_mul_scalar(0.5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parity::compare;

    #[test]
    fn the_loss_is_that_of_pytorch() {
        compare(&Clip::default(), "clip", &["left", "right", "scale"]);
    }
}
