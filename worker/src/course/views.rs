//! A run as it was seen in turn: at its start, and at every resume with training data of another size.

use std::ops::Range;

use dtrain_common::manifest::DataPeriod;
use dtrain_recipe::{Span, Train};

use super::PlanError;
use super::pace::Pace;
use super::timeline::Timeline;

/// The views in order. They depend on the sizes of the data alone, so every resume has the same.
#[derive(Debug, Clone)]
pub(super) struct Views {
    pub(super) earlier: Vec<View>,
    pub(super) now: View,
}

/// The timeline of a run if the data keeps its size from a step on.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) from: u64,
    pub(super) timeline: Timeline,
}

impl Views {
    /// Makes the views of a run; errors name a stage. There is at least one period; the first begins at step 0.
    pub(super) fn new(stages: &[Train], periods: &[DataPeriod]) -> Result<Self, (usize, PlanError)> {
        let view = |number: usize| {
            let (known, from) = (&periods[..=number], periods[number].step);
            Ok(View { from, timeline: Timeline::new(stages, known)? })
        };
        let last = periods.len() - 1;
        Ok(Self { earlier: (0..last).map(view).collect::<Result<_, _>>()?, now: view(last)? })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &View> {
        self.earlier.iter().chain([&self.now])
    }

    /// Returns the step of the run at which `span`, from the start of these stages, is over.
    pub(super) fn reached(&self, stages: &Range<usize>, span: Span) -> u64 {
        self.all().fold(u64::MAX, |reached, view| view.reach(reached, stages, span))
    }

    /// Returns the steps of the run at which these parts of a stage are over, in rising order; each before its end. Of a stage
    /// that ended before, its end.
    pub(super) fn parts_reached(&self, stage: usize, parts: &[f64]) -> Vec<u64> {
        let mut reached = vec![u64::MAX; parts.len()];
        // The first view begins at step 0, where a course is a new one.
        let mut pace = Pace::new(&(0..0));
        for view in self.all() {
            pace = pace.moved(view.from, &view.timeline.steps(&(stage..stage + 1)));
            for (reached, part) in reached.iter_mut().zip(parts) {
                if *reached > view.from {
                    *reached = pace.step_at(*part);
                }
            }
        }
        reached
    }
}

impl View {
    /// Returns the step at which a span is over, given where it was over for the view before: what was over when this view
    /// began stays.
    pub(super) fn reach(&self, before: u64, stages: &Range<usize>, span: Span) -> u64 {
        if before > self.from { self.timeline.step_after(span, stages) } else { before }
    }
}
