//! The recipes that come with dtrain, and the learning rate of any recipe.

use super::{General, Scaling, Source};

impl Source {
    /// Returns name and text of every embedded recipe; [`Source::find`] finds them by name.
    pub fn embedded() -> &'static [(&'static str, &'static str)] {
        &[
            ("demo", include_str!("../../recipes/demo.toml")),
            ("cifar100", include_str!("../../recipes/cifar100.toml")),
            ("camvid", include_str!("../../recipes/camvid.toml")),
            ("shakespeare", include_str!("../../recipes/shakespeare.toml")),
        ]
    }
}

impl General {
    /// Returns the learning rate to train with: the stated rate, scaled to the effective batch.
    pub fn learning_rate(&self) -> f64 {
        let (optim, batch) = (&self.optim, self.train.effective_batch);
        let scaled = |reference| scaled_lr(optim.lr, reference, batch, optim.scaling);
        optim.reference_batch.map_or(optim.lr, scaled)
    }
}

/// Scales `lr`, stated for `reference_batch` (at least 1), to `effective_batch`.
fn scaled_lr(lr: f64, reference_batch: usize, effective_batch: usize, rule: Scaling) -> f64 {
    // Exact up to 2^53 samples.
    let k = effective_batch as f64 / reference_batch as f64;
    match rule {
        Scaling::None => lr,
        Scaling::Linear => k * lr,
        Scaling::Sqrt => k.sqrt() * lr,
    }
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
    fn scaling_is_written_in_lower_case() {
        for (rule, name) in [(Scaling::None, "none"), (Scaling::Linear, "linear"), (Scaling::Sqrt, "sqrt")] {
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
