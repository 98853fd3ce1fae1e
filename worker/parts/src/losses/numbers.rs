//! The losses of numbers.

use dtrain_recipe::sample_losses::{Huber, L1, Mse, Quantile, SmoothL1};
use tch::{Reduction, TchError, Tensor};

use super::of_samples::{OfNumbers, OfSamples};

/// Makes the settings a loss of numbers by its function.
macro_rules! of_numbers {
    ($($loss:ident: |$it:ident, $output:ident, $goal:ident| $losses:expr;)+) => { $(
        impl OfSamples for $loss {
            fn of_numbers(&self) -> Option<&dyn OfNumbers> {
                Some(self)
            }
        }

        impl OfNumbers for $loss {
            fn losses(&self, $output: &Tensor, $goal: &Tensor) -> Result<Tensor, TchError> {
                let $it = self;
                $losses
            }
        }
    )+ };
}

of_numbers! {
    Mse: |_it, output, goal| output.f_sub(goal)?.f_square();
    L1: |_it, output, goal| output.f_sub(goal)?.f_abs();
    Huber: |it, output, goal| output.f_huber_loss(goal, Reduction::None, it.delta);
    SmoothL1: |it, output, goal| output.f_smooth_l1_loss(goal, Reduction::None, it.beta);
    Quantile: |it, output, goal| pinball(&goal.f_sub(output)?, it.quantile);
}

/// Returns the pinball loss of differences of targets to outputs.
fn pinball(differences: &Tensor, quantile: f64) -> Result<Tensor, TchError> {
    differences.f_mul_scalar(quantile)?.f_maximum(&differences.f_mul_scalar(quantile - 1.0)?)
}
