//! `evaluate.share`: the part of a run's time that evaluations take.

use std::fmt;
use std::time::{Duration, Instant};

use crate::course::RunPlan;
use crate::step::Status;

/// Returns whether the model is evaluated after the step number `done`, of which `status` is. The last evaluation is always
/// made.
pub(super) fn is_evaluated(plan: &RunPlan, done: u64, status: &Status) -> bool {
    plan.is_evaluation(done) && (status.spent == 0.0 || done >= plan.total_steps)
}

/// The time that evaluations have taken in this process.
pub(super) struct Evaluating {
    /// The part of the time that they may take.
    share: Option<f64>,
    began: Instant,
    total: Duration,
    last: Duration,
}

impl Evaluating {
    pub(super) fn new(share: Option<f64>) -> Self {
        Self { share, began: Instant::now(), total: Duration::ZERO, last: Duration::ZERO }
    }

    pub(super) fn add(&mut self, took: Duration) {
        self.total += took;
        self.last = took;
    }

    /// Returns whether another evaluation, as long as the last, stays within the share. The first is always made: its time is
    /// unknown.
    pub(super) fn has_time(&self) -> bool {
        self.share.is_none() || self.last.is_zero() || self.fits(self.began.elapsed())
    }

    fn fits(&self, elapsed: Duration) -> bool {
        let share = self.share.unwrap_or(1.0);
        (self.total + self.last).as_secs_f64() <= share * (elapsed + self.last).as_secs_f64()
    }
}

/// Says why an evaluation is not made.
impl fmt::Display for Evaluating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, elapsed) = (self.total.as_secs_f64(), self.began.elapsed().as_secs_f64());
        let share = self.share.unwrap_or(1.0);
        write!(f, "no evaluation: earlier ones took {total:.1} of {elapsed:.1} s (evaluate.share = {share})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluations_stay_within_their_share() {
        let second = Duration::from_secs(1);
        let mut evaluating = Evaluating::new(Some(0.1));
        assert!(evaluating.has_time());
        evaluating.add(second);
        // Two seconds of evaluations are a tenth of 20 seconds, of which the next takes one.
        assert!(!evaluating.fits(18 * second) && evaluating.fits(19 * second));
        let unlimited = Evaluating { share: None, ..evaluating };
        assert!(unlimited.fits(second));
    }
}
