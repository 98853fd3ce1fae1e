//! The head of a language model with its loss, without holding all logits at once.

use tch::Tensor;

use crate::error::{ShimError, create_tensor};
use crate::ffi;
pub use crate::ffi::Head;

impl Head {
    /// Computes the sum over all rows of the cross-entropy of `hidden` x `table`ᵀ against `targets`: R x
    /// width, vocabulary x width, and R int64. Differentiable once, by `hidden` and `table`. Products use
    /// autocast's dtype if it is on; the rest is in float32.
    ///
    /// The gradients are computed with the loss: backward keeps two tensors of the sizes of `hidden` and
    /// `table`, but no logits. In float16 the gradients need the loss scale, so backward recomputes the
    /// logits. `shadow` has the table's values in autocast's dtype, which saves casts if a gradient is
    /// recorded. Chunks of 0 rows, and on the CPU targets beyond the vocabulary, are `InvalidArgument`.
    pub fn loss(
        self,
        hidden: &Tensor,
        table: &Tensor,
        shadow: Option<&Tensor>,
        targets: &Tensor,
    ) -> Result<Tensor, ShimError> {
        let (hidden, table, targets) = (hidden.into(), table.into(), targets.into());
        create_tensor("compute the loss of a head", |out, error| {
            ffi::dt_head_loss(hidden, table, shadow.map(Into::into), targets, self, out, error)
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::{Device, Kind, Reduction};

    use super::*;
    use crate::autocast::Autocast;

    const ROWS: i64 = 37;
    const VOCABULARY: i64 = 71;
    const WIDTH: i64 = 24;

    /// Returns hidden features, the table, and targets, some of which are ignored.
    fn inputs() -> (Tensor, Tensor, Tensor) {
        tch::manual_seed(5);
        let cpu = (Kind::Float, Device::Cpu);
        let hidden = Tensor::randn([ROWS, WIDTH], cpu).set_requires_grad(true);
        let table = Tensor::randn([VOCABULARY, WIDTH], cpu).set_requires_grad(true);
        let targets = Tensor::randint(VOCABULARY, [ROWS], (Kind::Int64, Device::Cpu));
        let _ = targets.narrow(0, 5, 9).fill_(-100);
        (hidden, table, targets)
    }

    /// Computes the loss and the gradients by libtorch's own operations.
    fn plain(hidden: &Tensor, table: &Tensor, targets: &Tensor) -> [Tensor; 3] {
        let logits = hidden.linear(table, None::<&Tensor>);
        let loss = logits.cross_entropy_loss(targets, None::<&Tensor>, Reduction::Sum, -100, 0.0);
        (&loss * 0.125).backward();
        take_gradients(&loss, hidden, table)
    }

    fn take_gradients(loss: &Tensor, hidden: &Tensor, table: &Tensor) -> [Tensor; 3] {
        let gradients = [loss.detach(), hidden.grad().copy(), table.grad().copy()];
        let _ = hidden.grad().zero_();
        let _ = table.grad().zero_();
        gradients
    }

    /// Returns the largest difference, relative to the largest value.
    fn difference(a: &[Tensor; 3], b: &[Tensor; 3]) -> f64 {
        let relative = |(a, b): (&Tensor, &Tensor)| ((a - b).abs().max() / b.abs().max()).double_value(&[]);
        a.iter().zip(b).map(relative).fold(0.0, f64::max)
    }

    fn head(rows: i64, multiple: i64) -> Head {
        Head { ignored: -100, rows, multiple }
    }

    #[test]
    fn chunks_and_padding_change_only_the_order_of_sums() {
        let (hidden, table, targets) = inputs();
        let expected = plain(&hidden, &table, &targets);
        for (rows, multiple) in [(64, 1), (ROWS, 64), (8, 1), (1, 64), (5, 8)] {
            let loss = head(rows, multiple).loss(&hidden, &table, None, &targets).unwrap();
            (&loss * 0.125).backward();
            let got = take_gradients(&loss, &hidden, &table);
            let error = difference(&got, &expected);
            assert!(
                error <= if rows >= ROWS && multiple == 1 { 0.0 } else { 1e-6 },
                "{rows} {multiple}: {error}"
            );
        }
    }

    #[test]
    fn half_precision_is_as_accurate_as_libtorchs() {
        for kind in [Kind::BFloat16, Kind::Half] {
            let (hidden, table, targets) = inputs();
            let exact = plain(&hidden, &table, &targets);
            let region = Autocast::enter(Device::Cpu, kind).unwrap();
            let plain = difference(&plain(&hidden, &table, &targets), &exact);
            for (rows, multiple) in [(64, 1), (8, 64)] {
                let loss = head(rows, multiple).loss(&hidden, &table, None, &targets).unwrap();
                assert_eq!(loss.kind(), Kind::Float);
                (&loss * 0.125).backward();
                let error = difference(&take_gradients(&loss, &hidden, &table), &exact);
                assert!(error <= 1.5 * plain, "{kind:?}: {error}, libtorch {plain}");
            }
            drop(region);
        }
    }

    #[test]
    fn tensors_without_gradient_get_none() {
        let (hidden, table, targets) = inputs();
        let loss = tch::no_grad(|| head(8, 64).loss(&hidden, &table, None, &targets)).unwrap();
        assert!(!loss.requires_grad());
        let table = table.detach();
        let again = head(8, 64).loss(&hidden, &table, None, &targets).unwrap();
        assert_eq!(again.double_value(&[]), loss.double_value(&[]));
        again.backward();
        assert!(hidden.grad().defined() && !table.grad().defined());
    }

    #[test]
    fn a_target_within_the_padding_is_an_error() {
        let (hidden, table, targets) = inputs();
        let _ = targets.narrow(0, 0, 1).fill_(VOCABULARY);
        assert!(head(8, 64).loss(&hidden, &table, None, &targets).is_err());
        assert!(head(0, 64).loss(&hidden, &table, None, &targets).is_err());
    }
}
