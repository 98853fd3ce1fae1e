//! The balance of experts: Fedus et al. 2021, arXiv 2101.03961, equation 4 without its factor.

use dtrain_recipe::losses::Balance;
use tch::{Kind, TchError, Tensor};

use super::{OverStep, absent};
use crate::Wanted;

/// An output of N x ... x E.
const GATES: Wanted = Wanted::Output(
    "a number for each expert in the last dimension, N x ... x E with fixed lengths",
    |shape| matches!(shape, [None, .., Some(_)]),
);

/// E x the sum over the E experts of the part of the rows whose largest gate is the expert's, times the mean gate of
/// the expert. Only the second has a derivative. The rows of a sample, such as its tokens, count alike.
impl OverStep for Balance {
    fn takes(&self) -> Vec<(&str, Wanted)> {
        vec![(&self.gates, GATES)]
    }

    fn mean(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let gates = values[0];
        let (samples, experts) = (gates.size()[0], gates.size().last().copied().unwrap_or(1));
        // N x rows x E
        let gates = gates.f_to_kind(Kind::Float)?.f_reshape([samples, -1, experts])?;
        let gates = gates.f_masked_fill(&absent(weights)?.f_view([-1, 1, 1])?, 0.0)?;
        let chosen =
            tch::no_grad(|| gates.f_zeros_like()?.f_scatter_value(2, &gates.f_argmax(2, true)?, 1.0))?;
        let means = |values: &Tensor| {
            let of_samples = values.f_mean_dim([1i64].as_slice(), false, Kind::Float)?;
            mean_of_columns(&of_samples, weights)
        };
        means(&chosen)?.f_mul(&means(&gates)?)?.f_sum(Kind::Float)?.f_mul_scalar(experts as f64)
    }
}

/// Returns the weighted mean of each column of N x E values.
fn mean_of_columns(values: &Tensor, weights: &Tensor) -> Result<Tensor, TchError> {
    let sums =
        values.f_mul(&weights.f_unsqueeze(1)?)?.f_sum_dim_intlist([0i64].as_slice(), false, Kind::Float)?;
    sums.f_div(&weights.f_sum(Kind::Float)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parity::compare;

    #[test]
    fn the_loss_is_that_of_pytorch() {
        compare(&Balance::default(), "balance", &["gates"]);
    }
}
