//! The loss scaler of fp16 training: keeps small gradients above fp16's smallest numbers, as torch.amp.GradScaler.
//!
//! Pure arithmetic, and the same on every rank that is told the same: a step's losses are multiplied by
//! [`GradScaler::scale`]; once per optimizer step, after the reduction and before clipping, the gradients are multiplied by
//! [`GradScaler::inverse`] and looked through for what is not finite (`dtrain_torch_shim::fused::unscale`); what all ranks
//! found together goes to [`GradScaler::update`], and the step is skipped where something was found. Micikevicius et al.
//! 2018, arXiv 1710.03740, with the rules of torch/amp/grad_scaler.py and its kernel.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// fp16's smallest normal number, 2^-14: see [`GradScaler::is_exhausted`].
const SMALLEST_USEFUL: f32 = 6.103_515_6e-5;

/// How a scale moves. The defaults are torch's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalerOptions {
    /// The first scale, above 0.
    pub init: f64,
    /// The factor after `growth_interval` clean steps, above 1.
    pub growth: f64,
    /// The factor after a step with a gradient that is not finite, between 0 and 1.
    pub backoff: f64,
    /// Clean steps in a row before the scale grows, at least 1.
    pub growth_interval: u32,
}

impl Default for ScalerOptions {
    fn default() -> Self {
        Self {
            init: 65536.0,
            growth: 2.0,
            backoff: 0.5,
            growth_interval: 2000,
        }
    }
}

/// What a checkpoint keeps of a scaler; torch's state_dict has the same two under `scale` and `_growth_tracker`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ScalerState {
    /// The scale.
    pub scale: f64,
    /// Clean steps since it last moved.
    pub growth_tracker: u32,
}

/// A scaler that cannot be made or restored.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum ScalerError {
    /// A setting is out of range.
    #[error("the loss scaler's {name} is {got}; it must be {wanted}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What was given.
        got: f64,
        /// What it must be.
        wanted: &'static str,
    },
    /// A checkpoint's state is none that a scaler can have.
    #[error(
        "the loss scaler cannot go on from a scale of {scale} after {growth_tracker} clean steps: the checkpoint is damaged, \
         or was written with a longer growth interval than {growth_interval}"
    )]
    State {
        /// The scale.
        scale: f64,
        /// Clean steps since it last moved.
        growth_tracker: u32,
        /// The scaler's own interval.
        growth_interval: u32,
    },
}

/// The scale of an fp16 run, and how many clean steps it has seen.
#[derive(Debug, Clone, PartialEq)]
pub struct GradScaler {
    options: ScalerOptions,
    /// A float32, as torch's tensor: a product is rounded to it at every move.
    scale: f32,
    growth_tracker: u32,
}

impl GradScaler {
    /// A scaler at its first scale.
    ///
    /// # Errors
    /// Where a setting is out of the range that [`ScalerOptions`] states, or `init` is beyond float32.
    pub fn new(options: ScalerOptions) -> Result<Self, ScalerError> {
        let ScalerOptions {
            init,
            growth,
            backoff,
            growth_interval,
        } = options;
        let scale = init as f32;
        let settings = [
            (
                "first scale",
                init,
                scale > 0.0 && scale.is_finite(),
                "above 0 and within float32",
            ),
            (
                "growth factor",
                growth,
                growth > 1.0 && growth.is_finite(),
                "above 1",
            ),
            (
                "backoff factor",
                backoff,
                backoff > 0.0 && backoff < 1.0,
                "between 0 and 1",
            ),
            (
                "growth interval",
                growth_interval.into(),
                growth_interval > 0,
                "at least 1 step",
            ),
        ];
        for (name, got, fits, wanted) in settings {
            if !fits {
                return Err(ScalerError::Setting { name, got, wanted });
            }
        }
        Ok(Self {
            options,
            scale,
            growth_tracker: 0,
        })
    }

    /// What the losses of the step are multiplied by.
    pub fn scale(&self) -> f64 {
        self.scale.into()
    }

    /// What the gradients of the step are multiplied by: the reciprocal, taken in float64 and rounded to float32. Infinite
    /// from a scale of 2^-128 down, as torch's.
    pub fn inverse(&self) -> f32 {
        f64::from(self.scale).recip() as f32
    }

    /// Moves the scale at the end of an optimizer step, skipped or not; called once. `found_inf` says that a gradient of
    /// any rank was not finite.
    pub fn update(&mut self, found_inf: bool) {
        if found_inf {
            self.scale = (f64::from(self.scale) * self.options.backoff) as f32;
            self.growth_tracker = 0;
            return;
        }
        self.growth_tracker += 1;
        if self.growth_tracker == self.options.growth_interval {
            let grown = (f64::from(self.scale) * self.options.growth) as f32;
            if grown.is_finite() {
                self.scale = grown;
            }
            self.growth_tracker = 0;
        }
    }

    /// Whether the scale is of no further use: the caller asks after every update, and ends the run with a message.
    ///
    /// torch goes on halving it. From 2^-128 down it then takes steps that ruin the parameters: the reciprocal is infinite,
    /// and what is not finite is looked for before the multiplication with it.
    ///
    /// The bound is fp16's smallest normal number, 2^-14. A gradient that overflows fp16's 65504 under a smaller scale is
    /// above 10^9: the run has diverged, and a still smaller scale would flush every healthy gradient to 0.
    pub fn is_exhausted(&self) -> bool {
        self.scale < SMALLEST_USEFUL
    }

    /// What a checkpoint keeps; taken between two steps.
    pub fn state(&self) -> ScalerState {
        ScalerState {
            scale: self.scale.into(),
            growth_tracker: self.growth_tracker,
        }
    }

    /// Goes on from a state of [`GradScaler::state`].
    ///
    /// # Errors
    /// Where no scaler with these settings can have that state; the scaler is then unchanged.
    pub fn restore(&mut self, state: ScalerState) -> Result<(), ScalerError> {
        let ScalerState {
            scale,
            growth_tracker,
        } = state;
        let growth_interval = self.options.growth_interval;
        // NaN is not in the range. A scale may have fallen to 0.
        let fits = (0.0..=f64::from(f32::MAX)).contains(&scale) && growth_tracker < growth_interval;
        if !fits {
            return Err(ScalerError::State {
                scale,
                growth_tracker,
                growth_interval,
            });
        }
        self.scale = scale as f32;
        self.growth_tracker = growth_tracker;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn scaler(growth_interval: u32) -> GradScaler {
        GradScaler::new(ScalerOptions {
            growth_interval,
            ..ScalerOptions::default()
        })
        .unwrap()
    }

    #[test]
    fn the_scale_doubles_after_clean_steps_and_halves_at_once() {
        let mut scaler = scaler(3);
        let mut seen = Vec::new();
        for found_inf in [false, false, true, false, false, false, true, true] {
            scaler.update(found_inf);
            seen.push((scaler.scale(), scaler.state().growth_tracker));
        }
        let wanted = [
            (65536.0, 1),
            (65536.0, 2),
            (32768.0, 0),
            (32768.0, 1),
            (32768.0, 2),
            (65536.0, 0),
            (32768.0, 0),
            (16384.0, 0),
        ];
        assert_eq!(seen, wanted);
        assert_eq!(f64::from(scaler.inverse()) * scaler.scale(), 1.0);
    }

    #[test]
    fn the_scale_never_grows_to_infinity_and_may_fall_to_zero() {
        let mut scaler = scaler(1);
        for _ in 0..200 {
            scaler.update(false);
        }
        assert_eq!(scaler.scale(), 2f64.powi(127));
        assert!(!scaler.is_exhausted());
        for _ in 0..127 + 14 {
            scaler.update(true);
            assert!(!scaler.is_exhausted());
        }
        scaler.update(true);
        assert!(scaler.is_exhausted());
        for _ in 0..200 {
            scaler.update(true);
        }
        assert_eq!((scaler.scale(), scaler.inverse()), (0.0, f32::INFINITY));
    }

    #[test]
    fn a_restored_scaler_goes_on_as_the_first() {
        let mut first = scaler(7);
        let pattern = |step: u32| step % 19 == 4 || step % 23 == 22;
        (0..50).for_each(|step| first.update(pattern(step)));
        let text = serde_json::to_string(&first.state()).unwrap();
        let mut second = scaler(7);
        second.restore(serde_json::from_str(&text).unwrap()).unwrap();
        assert_eq!(first, second);
        for step in 50..300 {
            first.update(pattern(step));
            second.update(pattern(step));
            assert_eq!(first, second);
        }
    }

    #[test]
    fn settings_and_states_out_of_range_are_refused() {
        let good = ScalerOptions::default();
        let bad = [
            ("first scale", ScalerOptions { init: 0.0, ..good }),
            (
                "first scale",
                ScalerOptions {
                    init: f64::NAN,
                    ..good
                },
            ),
            ("first scale", ScalerOptions { init: 1e39, ..good }),
            ("growth factor", ScalerOptions { growth: 1.0, ..good }),
            ("backoff factor", ScalerOptions { backoff: 1.0, ..good }),
            ("backoff factor", ScalerOptions { backoff: 0.0, ..good }),
            (
                "growth interval",
                ScalerOptions {
                    growth_interval: 0,
                    ..good
                },
            ),
        ];
        for (wanted, options) in bad {
            let error = GradScaler::new(options).unwrap_err();
            assert!(
                matches!(error, ScalerError::Setting { name, .. } if name == wanted),
                "{error}"
            );
        }
        let mut scaler = scaler(10);
        for (scale, growth_tracker) in [(-1.0, 0), (f64::NAN, 0), (f64::INFINITY, 0), (1.0, 10)] {
            let before = scaler.clone();
            let state = ScalerState {
                scale,
                growth_tracker,
            };
            assert!(scaler.restore(state).is_err());
            assert_eq!(scaler, before);
        }
    }
}
