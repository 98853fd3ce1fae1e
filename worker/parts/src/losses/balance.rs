//! The balance of experts: Fedus et al. 2021, arXiv 2101.03961, equation 4 without its factor.

use dtrain_recipe::losses::Balance;
use tch::{Kind, TchError, Tensor};

use super::{OverStep, absent};
use crate::Wanted;

/// E x the sum over the E experts of the part of the chosen gates that are the expert's, times the mean gate of the expert. A row
/// chooses its `top` largest gates. Only the mean has a derivative. The rows of a sample, such as its tokens, count alike.
impl OverStep for Balance {
    fn takes(&self) -> Vec<(&str, Wanted)> {
        vec![(&self.gates, Wanted::Experts { chosen: self.top })]
    }

    fn mean(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
        let gates = values[0];
        let (samples, experts) = (gates.size()[0], gates.size().last().copied().unwrap_or(1));
        // N x rows x E
        let gates = gates.f_to_kind(Kind::Float)?.f_reshape([samples, -1, experts])?;
        let gates = gates.f_masked_fill(&absent(weights)?.f_view([-1, 1, 1])?, 0.0)?;
        let chosen = tch::no_grad(|| {
            let largest = match self.top {
                // Of equal gates the first.
                1 => gates.f_argmax(2, true)?,
                top => gates.f_topk(top as i64, 2, true, false)?.1,
            };
            gates.f_zeros_like()?.f_scatter_value(2, &largest, 1.0)
        })?;
        let means = |values: &Tensor| {
            let of_samples = values.f_mean_dim([1i64].as_slice(), false, Kind::Float)?;
            mean_of_columns(&of_samples, weights)
        };
        means(&chosen)?
            .f_mul(&means(&gates)?)?
            .f_sum(Kind::Float)?
            .f_mul_scalar(experts as f64 / self.top as f64)
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
    fn a_row_chooses_fewer_experts_than_there_are() {
        let taken = |top, experts| {
            let balance = Balance { top, ..Balance::default() };
            balance.takes()[0].1.of_sample(&[None, Some(5), Some(experts)])
        };
        assert_eq!((taken(1, 2), taken(3, 4)), (Some(vec![5, 2]), Some(vec![5, 4])));
        assert_eq!((taken(1, 1), taken(3, 3)), (None, None));
    }

    #[test]
    fn the_loss_is_that_of_pytorch() {
        compare(&Balance::default(), "balance", &["gates"]);
        compare(&Balance { top: 2, ..Balance::default() }, "balance_of_two", &["gates"]);
    }
}
