//! The verdict of an overfit check: whether the loss of a few samples fell to near its least.

use dtrain_common::result::OverfitResult;
use dtrain_common::result::RunResult;
use dtrain_common::text::counted;

use crate::metrics::{EvalRecord, Line};
use crate::run::Training;
use crate::run::error::Result;
use crate::run::follower::{Follower, Followers};

/// The part of the first loss that counts as near the least.
const NEAR: f64 = 0.1;
/// The part of its loss that the last tenth of the steps loses if the loss is still falling.
const FALLING: f64 = 0.02;

/// Judges the check at the end of the run.
pub(crate) struct Judge {
    samples: usize,
    total_steps: u64,
    losses: Vec<f64>,
    /// The loss and the accuracy of the last evaluation, of the same samples.
    evaluated: Option<(f64, Option<f64>)>,
    result: Option<OverfitResult>,
}

impl Judge {
    pub(crate) fn new(samples: usize, total_steps: u64) -> Self {
        Self { samples, total_steps, losses: Vec::new(), evaluated: None, result: None }
    }

    fn judge(&self) -> Option<OverfitResult> {
        let first = *self.losses.first()?;
        let tenth = (self.losses.len() / 10).max(1);
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        let (before, last) = self.losses.split_at(self.losses.len() - tenth);
        let (before, last) = (mean(&before[before.len().saturating_sub(tenth)..]), mean(last));
        let (loss, accuracy) = self.evaluated.unwrap_or((last, None));
        let is_near = |loss: f64| loss <= NEAR * first;
        let verdict = match () {
            () if accuracy.is_some_and(|accuracy| accuracy >= 1.0) || first > 0.0 && is_near(loss) => PASSED,
            // The least of such a loss is not known.
            () if first <= 0.0 => UNKNOWN,
            () if is_near(last) => ONLY_IN_TRAINING,
            () if last < (1.0 - FALLING) * before => STILL_FALLING,
            () => NOT_PASSED,
        };
        let (samples, verdict) = (self.samples, verdict.to_owned());
        let [first_loss, train_loss, loss] = [first, last, loss].map(|loss| loss.is_finite().then_some(loss));
        Some(OverfitResult { samples, verdict, first_loss, train_loss, loss })
    }
}

const PASSED: &str = "passed";
const UNKNOWN: &str = "unknown";
const ONLY_IN_TRAINING: &str = "only-in-training";
const STILL_FALLING: &str = "still-falling";
const NOT_PASSED: &str = "not-passed";

/// Returns the sentences for people.
fn sentences(result: &OverfitResult, steps: usize) -> Vec<String> {
    let OverfitResult { samples, first_loss, train_loss, loss, .. } = result;
    let [first_loss, train_loss, loss] = [first_loss, train_loss, loss]
        .map(|loss| loss.map_or("a value that is not finite".to_owned(), |loss| format!("{loss:.4}")));
    let of = format!(
        "the loss of {} went from {first_loss} to {loss} in {}",
        counted(*samples, "sample"),
        counted(steps, "step")
    );
    let (head, looks): (String, &[&str]) = match result.verdict.as_str() {
        PASSED => (format!("overfit check passed: {of}"), &[]),
        UNKNOWN => (format!("overfit check: {of}; its least value is not known, so judge yourself"), &[]),
        ONLY_IN_TRAINING => (
            format!("overfit check not passed: the training loss fell to {train_loss}, but evaluated {of}"),
            &[
                "BatchNorm's running statistics: take more steps, or set model.batchnorm = \"group:N\" or \"frozen\"",
                "what the model does in training only, such as dropout",
            ],
        ),
        STILL_FALLING => (
            format!("overfit check not finished: {of}, and it is still falling"),
            &["the number of steps: add --set train.steps=N; in a recipe with stages, change their steps"],
        ),
        _ => (
            format!("overfit check not passed: {of}"),
            &[
                "the learning rate: `dtrain profile RECIPE --lr-range 1e-6:1` suggests one",
                "samples and labels: `dtrain data RECIPE --show samples.png` draws them",
                "parameters that are not trained: model.freeze, and freeze of each [[stage]]",
                "a loss whose least is above 0: label smoothing, soft targets, a sum with fixed terms",
            ],
        ),
    };
    let looks = looks.iter().map(|look| format!("  look at {look}"));
    std::iter::once(head).chain(looks).collect()
}

impl Follower for Judge {
    fn record(&mut self, line: &Line<'_>) -> Result<()> {
        match line {
            Line::Step(step) => self.losses.push(step.loss),
            Line::Eval(EvalRecord { loss, metrics, .. }) => {
                let accuracy = metrics.0.iter().find(|(name, _)| name == "accuracy");
                self.evaluated = Some((*loss, accuracy.map(|(_, value)| *value)));
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, training: &mut Training<'_>, others: &mut Followers<'_>) -> Result<()> {
        if training.course.done >= self.total_steps {
            self.result = self.judge();
        }
        let sentences = self.result.iter().flat_map(|result| sentences(result, self.losses.len()));
        sentences.for_each(|sentence| others.note(sentence));
        Ok(())
    }

    fn conclude(&self, result: &mut RunResult) {
        result.overfit.clone_from(&self.result);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn verdict(losses: &[f64], evaluated: Option<(f64, Option<f64>)>) -> String {
        let judge = Judge { losses: losses.to_vec(), evaluated, ..Judge::new(8, 20) };
        judge.judge().unwrap().verdict
    }

    #[test]
    fn a_loss_near_its_least_passes() {
        let falling: Vec<f64> = (0..100).map(|step| 2.0 * 0.9f64.powi(step)).collect();
        assert_eq!(verdict(&falling, None), PASSED);
        assert_eq!(verdict(&falling, Some((0.1, Some(0.5)))), PASSED);
        // Label smoothing keeps the loss above 0.
        assert_eq!(verdict(&[2.0; 50], Some((0.6, Some(1.0)))), PASSED);
        assert_eq!(verdict(&falling, Some((1.9, Some(0.2)))), ONLY_IN_TRAINING);
        assert_eq!(verdict(&falling[..10], Some((1.0, None))), STILL_FALLING);
        assert_eq!(verdict(&[2.0; 50], Some((2.0, Some(0.1)))), NOT_PASSED);
        assert_eq!(verdict(&[f64::NAN; 50], None), NOT_PASSED);
        assert_eq!(verdict(&[-1.0; 50], None), UNKNOWN);
        assert!(Judge::new(8, 20).judge().is_none());
    }

    #[test]
    fn what_did_not_pass_has_remedies() {
        let result = |verdict: &str| OverfitResult {
            samples: 1,
            verdict: verdict.to_owned(),
            first_loss: Some(2.0),
            train_loss: Some(0.01),
            loss: Some(1.5),
        };
        assert_eq!(
            sentences(&result(PASSED), 20),
            ["overfit check passed: the loss of 1 sample went from 2.0000 to 1.5000 in 20 steps"]
        );
        for failed in [ONLY_IN_TRAINING, STILL_FALLING, NOT_PASSED] {
            assert!(sentences(&result(failed), 20).len() > 1, "{failed}");
        }
    }
}
