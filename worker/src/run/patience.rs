//! `train.stop_early`: the end of a run whose figure no longer improves.

use std::collections::BTreeMap;

use dtrain_common::manifest::Stopping;
use dtrain_recipe::StopEarly;

/// Counts the evaluations without an improvement; without the setting it never ends a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Patience {
    settings: Option<StopEarly>,
    pub(crate) so_far: Option<Stopping>,
}

impl Patience {
    /// Continues from `earlier`, the progress of the resumed run, if it was compared by the same figure.
    pub(crate) fn new(settings: Option<StopEarly>, earlier: Option<Stopping>) -> Self {
        let same = |settings: &StopEarly| earlier.filter(|earlier| earlier.by == settings.figure());
        let so_far = settings.as_ref().and_then(same);
        Self { settings, so_far }
    }

    /// Compares an evaluation after `step`. A figure that is not finite is no improvement.
    pub(super) fn compare(&mut self, figures: &BTreeMap<String, f64>, step: u64) {
        let Some(settings) = &self.settings else { return };
        let by = settings.figure();
        let value = figures.get(&by.figure).copied().unwrap_or(f64::NAN);
        let so_far = self.so_far.take().unwrap_or(Stopping { by, best: None, step, since: 0, counted: None });
        // A longer run evaluates again after the last step of the shorter one.
        let is_counted = so_far.counted == Some(step);
        let counted = Some(step);
        self.so_far = Some(match so_far.by.is_better_by(value, so_far.best, settings.min_delta) {
            _ if is_counted => so_far,
            true => Stopping { best: Some(value), step, since: 0, counted, ..so_far },
            false => Stopping { since: so_far.since + 1, counted, ..so_far },
        });
    }

    /// Returns whether the next evaluation may end the run.
    pub(crate) fn may_end(&self) -> bool {
        let since = self.so_far.as_ref().map_or(0, |so_far| so_far.since);
        self.settings.as_ref().is_some_and(|settings| since + 1 >= settings.patience)
    }

    /// Returns why the run ends, if it does.
    pub(crate) fn end(&self) -> Option<String> {
        let (settings, so_far) = (self.settings.as_ref()?, self.so_far.as_ref()?);
        let Stopping { by, step, since, .. } = so_far;
        (*since >= settings.patience).then(|| {
            format!(
                "the training ends early: {since} evaluations without a better {} than after step {step} (train.stop_early); to continue, \
                 raise train.stop_early.patience or remove it",
                by.figure.replace('_', " ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn patience(patience: u64, min_delta: f64, earlier: Option<Stopping>) -> Patience {
        let figure = Some("min loss".parse().unwrap());
        Patience::new(Some(StopEarly { patience, figure, min_delta }), earlier)
    }

    fn ends_at(patience: &mut Patience, losses: &[f64]) -> Option<usize> {
        let first = patience.so_far.as_ref().and_then(|so_far| so_far.counted).unwrap_or(0) + 1;
        losses.iter().zip(first..).position(|(loss, step)| {
            patience.compare(&[("loss".to_owned(), *loss)].into(), step);
            patience.end().is_some()
        })
    }

    #[test]
    fn a_run_ends_after_evaluations_without_an_improvement() {
        assert_eq!(ends_at(&mut patience(2, 0.0, None), &[3.0, 2.0, 2.0, 1.0, 1.5, 1.0, 0.5]), Some(5));
        assert_eq!(ends_at(&mut patience(2, 0.6, None), &[3.0, 2.5, 2.3, 1.0]), None);
        assert_eq!(ends_at(&mut patience(2, 0.8, None), &[3.0, 2.5, 2.3, 1.0]), Some(2));
        assert_eq!(ends_at(&mut patience(2, 0.0, None), &[f64::NAN, f64::NAN, 1.0]), Some(1));
        assert_eq!(ends_at(&mut Patience::default(), &[1.0; 50]), None);
    }

    #[test]
    fn a_step_is_counted_once() {
        let mut counts = patience(2, 0.0, None);
        let mut compare = |loss: f64, step| {
            let may_end = counts.may_end();
            counts.compare(&[("loss".to_owned(), loss)].into(), step);
            (may_end, counts.so_far.as_ref().map(|so_far| so_far.since))
        };
        assert_eq!(compare(3.0, 4), (false, Some(0)));
        assert_eq!(compare(3.0, 8), (false, Some(1)));
        // A resumed run evaluates the same step again.
        assert_eq!(compare(3.0, 8), (true, Some(1)));
        assert_eq!(compare(3.0, 12), (true, Some(2)));
    }

    #[test]
    fn a_resumed_run_continues_to_count() {
        let losses = [3.0, 2.0, 2.5, 2.5, 2.5];
        let mut first = patience(3, 0.0, None);
        assert_eq!(ends_at(&mut first, &losses[..3]), None);
        assert_eq!(ends_at(&mut patience(3, 0.0, first.so_far.clone()), &losses[3..]), Some(1));
        // Another figure begins anew.
        let other = Stopping { by: "max accuracy".parse().unwrap(), ..first.so_far.unwrap() };
        assert_eq!(patience(3, 0.0, Some(other)).so_far, None);
    }
}
