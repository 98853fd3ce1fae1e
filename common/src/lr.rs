//! Learning rates and batch sizes: what a learning rate stated for one batch becomes at another.
//!
//! With k = effective batch / reference batch: linear, `lr x k` (Goyal et al. 2017, arXiv 1706.02677), and square
//! root, `lr x sqrt(k)`, for Adam-like optimizers (Malladi et al. 2022, arXiv 2205.10287).

use serde::{Deserialize, Serialize};

/// The rule by which a learning rate follows the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// The learning rate is used as stated.
    #[default]
    None,
    /// In proportion to the batch.
    Linear,
    /// In proportion to the square root of the batch.
    Sqrt,
}

impl Scaling {
    /// Every rule as a recipe spells it.
    pub const NAMES: &'static [&'static str] = &["none", "linear", "sqrt"];
}

impl std::fmt::Display for Scaling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Linear => "linear",
            Self::Sqrt => "sqrt",
        })
    }
}

/// The learning rate at `effective_batch` when `lr` was stated for `reference_batch` (at least 1).
pub fn scaled_lr(lr: f64, reference_batch: usize, effective_batch: usize, rule: Scaling) -> f64 {
    // Exact up to 2^53 samples.
    let k = effective_batch as f64 / reference_batch as f64;
    match rule {
        Scaling::None => lr,
        Scaling::Linear => k * lr,
        Scaling::Sqrt => k.sqrt() * lr,
    }
}

/// Why Adam's settings cannot follow the batch.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq)]
pub enum LrError {
    /// The batch grew so much that a beta would become zero or negative.
    #[error(
        "the square-root rule does not hold at {k} times the reference batch: beta = {beta} would become \
         {scaled}; use a smaller effective batch or scale the learning rate alone"
    )]
    BetaVanishes {
        /// Effective batch over reference batch.
        k: f64,
        /// The beta that vanishes.
        beta: f64,
        /// What it would become.
        scaled: f64,
    },
    /// The ratio of the batches is not a positive number.
    #[error("the ratio of effective batch to reference batch is {k}; it must be above 0")]
    Ratio {
        /// The ratio.
        k: f64,
    },
}

/// Adam's betas and eps under the square-root rule at `k` times the reference batch: `beta = 1 - k (1 - beta)` and
/// `eps / sqrt(k)`, which together with `sqrt(k) x lr` keep the optimizer's trajectory (Malladi et al. 2022).
///
/// # Errors
/// [`LrError`] once `k (1 - beta) >= 1`, where the rule has no meaning, or for a `k` that is not above 0.
pub fn scaled_adam(betas: (f64, f64), eps: f64, k: f64) -> Result<((f64, f64), f64), LrError> {
    if !(k.is_finite() && k > 0.0) {
        return Err(LrError::Ratio { k });
    }
    let scale = |beta: f64| match 1.0 - k * (1.0 - beta) {
        scaled if scaled > 0.0 => Ok(scaled),
        scaled => Err(LrError::BetaVanishes { k, beta, scaled }),
    };
    Ok(((scale(betas.0)?, scale(betas.1)?), eps / k.sqrt()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-12 * a.abs().max(b.abs())
    }

    #[test]
    fn the_guides_figures() {
        assert!(close(scaled_lr(5e-4, 512, 16, Scaling::Linear), 1.5625e-5));
        assert!(close(scaled_lr(1e-4, 8, 16, Scaling::Linear), 2e-4));
        assert!(close(scaled_lr(1e-4, 8, 32, Scaling::Linear), 4e-4));
        let sqrt = scaled_lr(1e-4, 8, 16, Scaling::Sqrt);
        assert!(close(sqrt, 1e-4 * 2f64.sqrt()));
        assert_eq!(format!("{sqrt:.3e}"), "1.414e-4");
        assert_eq!(scaled_lr(1e-4, 8, 16, Scaling::None), 1e-4);
    }

    #[test]
    fn adam_follows_the_square_root_rule() {
        let ((b1, b2), eps) = scaled_adam((0.9, 0.999), 1e-8, 4.0).unwrap();
        assert!(
            close(b1, 0.6) && close(b2, 0.996) && close(eps, 5e-9),
            "{b1} {b2} {eps}"
        );
        assert_eq!(scaled_adam((0.9, 0.999), 1e-8, 1.0).unwrap().1, 1e-8);
    }

    #[test]
    fn adam_ends_where_the_rule_ends() {
        let error = scaled_adam((0.5, 0.999), 1e-8, 2.0).unwrap_err();
        assert!(
            matches!(error, LrError::BetaVanishes { beta: 0.5, .. }),
            "{error:?}"
        );
        assert!(matches!(
            scaled_adam((0.9, 0.999), 1e-8, 1000.0),
            Err(LrError::BetaVanishes { .. })
        ));
        for k in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(
                matches!(scaled_adam((0.9, 0.999), 1e-8, k), Err(LrError::Ratio { .. })),
                "{k}"
            );
        }
    }

    #[test]
    fn scaling_is_written_in_lower_case() {
        for (rule, name) in [
            (Scaling::None, "none"),
            (Scaling::Linear, "linear"),
            (Scaling::Sqrt, "sqrt"),
        ] {
            assert_eq!(rule.to_string(), name);
            assert_eq!(serde_json::to_string(&rule).unwrap(), format!("\"{name}\""));
        }
    }

    proptest! {
        #[test]
        fn rules_agree_at_the_reference_and_compose(lr in 1e-8f64..1.0, a in 1usize..4096, b in 1usize..4096) {
            for rule in [Scaling::None, Scaling::Linear, Scaling::Sqrt] {
                prop_assert_eq!(scaled_lr(lr, a, a, rule), lr);
                let back = scaled_lr(scaled_lr(lr, a, b, rule), b, a, rule);
                prop_assert!(close(back, lr), "{} there and back: {}", rule, back);
            }
        }
    }
}
