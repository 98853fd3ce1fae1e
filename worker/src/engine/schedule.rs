//! Learning-rate schedules: the rate of every step, a pure function of its number.

use std::f64::consts::PI;

/// A learning rate over the steps of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The rate after warm-up.
    pub peak: f64,
    /// Steps of linear warm-up; the rate of step t is `peak (t + 1) / warmup`, so the first step already moves and the
    /// last of them runs at the peak.
    pub warmup_steps: u64,
    /// Steps of the whole run.
    pub total_steps: u64,
    /// What follows the warm-up.
    pub decay: Decay,
}

/// The course of the rate after warm-up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decay {
    /// Stays at the peak.
    Constant,
    /// Half a cosine down to `min_lr` (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts); step t of the
    /// decay's n runs at the cosine's point t / n, as torch's CosineAnnealingLR.
    Cosine {
        /// The rate that the curve approaches.
        min_lr: f64,
    },
}

impl Schedule {
    /// The learning rate of optimizer step `step`, counted from 0. Past the end the last value stays.
    pub fn lr(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        match self.decay {
            Decay::Constant => self.peak,
            Decay::Cosine { min_lr } => {
                let steps = self.total_steps.saturating_sub(self.warmup_steps).max(1);
                let done = (step - self.warmup_steps).min(steps);
                let cosine = (PI * done as f64 / steps as f64).cos();
                min_lr + (self.peak - min_lr) * (1.0 + cosine) / 2.0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSINE: Schedule = Schedule {
        peak: 0.1,
        warmup_steps: 10,
        total_steps: 110,
        decay: Decay::Cosine { min_lr: 0.01 },
    };

    #[test]
    fn warm_up_rises_linearly_to_the_peak() {
        assert!((COSINE.lr(0) - 0.01).abs() < 1e-15);
        assert!((COSINE.lr(4) - 0.05).abs() < 1e-15);
        assert_eq!(COSINE.lr(9), 0.1);
        assert_eq!(COSINE.lr(10), 0.1);
    }

    #[test]
    fn the_cosine_halves_in_the_middle_and_ends_at_the_minimum() {
        assert!((COSINE.lr(60) - 0.055).abs() < 1e-15);
        assert!((COSINE.lr(110) - 0.01).abs() < 1e-15);
        assert_eq!(COSINE.lr(5000), COSINE.lr(110));
        let mut last = f64::INFINITY;
        for step in 10..=110 {
            assert!(COSINE.lr(step) <= last);
            last = COSINE.lr(step);
        }
    }

    #[test]
    fn a_run_that_is_all_warm_up_and_a_constant_one_are_defined() {
        let all_warm_up = Schedule {
            warmup_steps: 110,
            ..COSINE
        };
        assert!(all_warm_up.lr(109) <= 0.1 && all_warm_up.lr(110).is_finite());
        let constant = Schedule {
            warmup_steps: 0,
            decay: Decay::Constant,
            ..COSINE
        };
        assert_eq!((constant.lr(0), constant.lr(1000)), (0.1, 0.1));
    }
}
