//! The loss scaler of fp16 training (Micikevicius et al. 2018, arXiv 1710.03740), with the rules of
//! torch/amp/grad_scaler.py and its kernel. Only arithmetic, the same on every rank.

use dtrain_common::manifest::LossScale;
use thiserror::Error;

/// fp16's smallest normal number, 2^-14: see [`GradScaler::is_exhausted`].
const SMALLEST_USEFUL: f32 = 6.103_515_6e-5;

/// Changes of the scale. The defaults are torch's; a recipe sets only the first scale.
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
        Self { init: 65536.0, growth: 2.0, backoff: 0.5, growth_interval: 2000 }
    }
}

/// Settings or a state that a scaler cannot have.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum ScalerError {
    #[error("the first loss scale is {0}; choose one above 0 and within float32's range")]
    First(f64),
    #[error(
        "the checkpoint's loss scale is invalid: {scale} after {clean_steps} clean steps, with a growth interval of \
         {growth_interval}; resume from an earlier checkpoint"
    )]
    State { scale: f64, clean_steps: u32, growth_interval: u32 },
}

/// The scale of an fp16 run, and its number of clean steps.
#[derive(Debug, Clone, PartialEq)]
pub struct GradScaler {
    options: ScalerOptions,
    /// float32, as in torch: every change rounds to it.
    scale: f32,
    clean_steps: u32,
}

impl GradScaler {
    /// Creates a scaler with its first scale.
    pub fn new(options: ScalerOptions) -> Result<Self, ScalerError> {
        let scale = options.init as f32;
        match scale > 0.0 && scale.is_finite() {
            true => Ok(Self { options, scale, clean_steps: 0 }),
            false => Err(ScalerError::First(options.init)),
        }
    }

    /// Returns the factor of the step's losses.
    pub fn scale(&self) -> f64 {
        self.scale.into()
    }

    /// Returns the factor of the step's gradients: the reciprocal, computed in float64 and rounded to
    /// float32. Infinite for a scale of 2^-128 or less, as in torch.
    pub fn inverse(&self) -> f32 {
        f64::from(self.scale).recip() as f32
    }

    /// Updates the scale after an optimizer step, skipped or not. `found_inf`: a gradient was not finite.
    pub fn update(&mut self, found_inf: bool) {
        if found_inf {
            self.scale = (f64::from(self.scale) * self.options.backoff) as f32;
            self.clean_steps = 0;
            return;
        }
        self.clean_steps += 1;
        if self.clean_steps == self.options.growth_interval {
            let grown = (f64::from(self.scale) * self.options.growth) as f32;
            if grown.is_finite() {
                self.scale = grown;
            }
            self.clean_steps = 0;
        }
    }

    /// Returns whether the scale is below fp16's smallest normal number. A gradient that then overflows 65504
    /// is above 10^9: the run has diverged. torch keeps halving; from 2^-128 on it ruins parameters.
    pub fn is_exhausted(&self) -> bool {
        self.scale < SMALLEST_USEFUL
    }

    /// Returns the state for a checkpoint: torch's `scale` and `_growth_tracker`.
    pub fn state(&self) -> LossScale {
        LossScale { scale: self.scale.into(), clean_steps: self.clean_steps }
    }

    /// Continues from a state. A state that these settings cannot have is an error and changes nothing.
    pub fn restore(&mut self, state: LossScale) -> Result<(), ScalerError> {
        let LossScale { scale, clean_steps } = state;
        let growth_interval = self.options.growth_interval;
        // The range excludes NaN. A scale may have fallen to 0.
        if !(0.0..=f64::from(f32::MAX)).contains(&scale) || clean_steps >= growth_interval {
            return Err(ScalerError::State { scale, clean_steps, growth_interval });
        }
        (self.scale, self.clean_steps) = (scale as f32, clean_steps);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn scaler(growth_interval: u32) -> GradScaler {
        GradScaler::new(ScalerOptions { growth_interval, ..ScalerOptions::default() }).unwrap()
    }

    #[test]
    fn the_scale_doubles_after_clean_steps_and_halves_at_once() {
        let mut scaler = scaler(3);
        let mut seen = Vec::new();
        for found_inf in [false, false, true, false, false, false, true, true] {
            scaler.update(found_inf);
            seen.push((scaler.scale(), scaler.state().clean_steps));
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
    fn a_restored_scaler_continues_identically() {
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
    fn scales_out_of_range_are_errors() {
        for init in [0.0, -1.0, f64::NAN, 1e39] {
            let options = ScalerOptions { init, ..ScalerOptions::default() };
            assert!(matches!(GradScaler::new(options), Err(ScalerError::First(_))));
        }
        let mut scaler = scaler(10);
        for (scale, clean_steps) in [(-1.0, 0), (f64::NAN, 0), (f64::INFINITY, 0), (1.0, 10)] {
            let before = scaler.clone();
            assert!(scaler.restore(LossScale { scale, clean_steps }).is_err());
            assert_eq!(scaler, before);
        }
    }
}
