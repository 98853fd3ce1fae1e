//! The contrastive loss of CLIP: Radford et al. 2021, arXiv 2103.00020.

use tch::{TchError, Tensor};

use super::{NOTHING, absent, mean, unit};

/// Returns the mean of two cross-entropies: of the right partner of each left vector among all right ones, and the other
/// way round. `left`, `right`: N x D, normalised here. `scale`: one number, by which cosines are multiplied.
pub fn clip(left: &Tensor, right: &Tensor, scale: &Tensor, weights: &Tensor) -> Result<Tensor, TchError> {
    let logits = unit(left, weights)?.f_matmul(&unit(right, weights)?.f_transpose(0, 1)?)?.f_mul(scale)?;
    let absent = absent(weights)?;
    let pairs = logits.f_diagonal(0, 0, 1)?;
    let side = |logits: &Tensor| {
        let among = logits.f_masked_fill(&absent, NOTHING)?.f_logsumexp([1i64].as_slice(), false)?;
        mean(&among.f_sub(&pairs)?, weights)
    };
    side(&logits)?.f_add(&side(&logits.f_transpose(0, 1)?)?)?.f_mul_scalar(0.5)
}
