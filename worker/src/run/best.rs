//! The best checkpoint of a run.

use std::collections::BTreeMap;

use dtrain_common::manifest::BestSoFar;
use dtrain_recipe::Best;

use crate::metrics::EvalRecord;

/// The best checkpoint of a run by the figure of `checkpoint.best`; none without that setting.
#[derive(Debug, Clone, Default)]
pub(crate) struct BestKeeper {
    by: Option<Best>,
    pub(crate) so_far: Option<BestSoFar>,
    /// The previous best, in case writing the best checkpoint fails.
    before: Option<BestSoFar>,
}

impl BestKeeper {
    /// Continues from `earlier`, the best of the resumed run, if it was compared by the same figure.
    pub(crate) fn new(by: Option<Best>, earlier: Option<BestSoFar>) -> Self {
        let so_far = earlier.filter(|earlier| Some(&earlier.by) == by.as_ref());
        Self { by, so_far, before: None }
    }

    /// Restores the previous best, if the checkpoint after `step` was the best and could not be written.
    pub(super) fn forget(&mut self, step: u64) {
        if self.so_far.as_ref().is_some_and(|best| best.step == step) {
            self.so_far = self.before.take();
        }
    }

    /// Compares an evaluation after `step`. Returns whether it is the best; None without `checkpoint.best`.
    pub(super) fn compare(&mut self, figures: &BTreeMap<String, f64>, step: u64) -> Option<bool> {
        let by = self.by.as_ref()?;
        let value = figures.get(&by.figure).copied().unwrap_or(f64::NAN);
        let is_best = by.is_better(value, self.so_far.as_ref().map(|best| best.value));
        if is_best {
            let by = by.clone();
            self.before = self.so_far.replace(BestSoFar { by, value, step });
        }
        Some(is_best)
    }
}

/// Returns the figures of an evaluation by name, including the loss.
pub(crate) fn figures_of(record: &EvalRecord) -> BTreeMap<String, f64> {
    record.metrics.0.iter().cloned().chain([("loss".to_owned(), record.loss)]).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_unwritten_checkpoint_is_not_the_best() {
        let mut best = BestKeeper::new(Some("min loss".parse().unwrap()), None);
        let compare =
            |best: &mut BestKeeper, loss, step| best.compare(&[("loss".to_owned(), loss)].into(), step);
        let step = |best: &BestKeeper| best.so_far.as_ref().map(|best| best.step);
        assert_eq!(compare(&mut best, 2.0, 16), Some(true));
        assert_eq!(compare(&mut best, 1.0, 32), Some(true));
        // A later checkpoint that is not the best changes nothing.
        best.forget(48);
        assert_eq!(step(&best), Some(32));
        best.forget(32);
        assert_eq!(step(&best), Some(16));
        assert_eq!(compare(&mut best, 1.5, 64), Some(true));
        best.forget(32);
        assert_eq!(step(&best), Some(64));
    }
}
