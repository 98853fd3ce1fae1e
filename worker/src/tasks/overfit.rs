//! A task that trains on a few fixed samples, and evaluates them: `train.overfit`.

use std::sync::Arc;

use super::{Batch, Facts, Loss, Mode, Predict, RowFigures, StageView, StepLoss, Task, TaskError, Totals};
use crate::data::Chosen;

/// A task whose training set is the first samples of the order of the first epoch.
pub(crate) struct Overfit {
    of: Box<dyn Task>,
    facts: Facts,
}

impl Overfit {
    /// Makes the task train on `samples` samples, those of the order of `seed`.
    pub(crate) fn new(of: Box<dyn Task>, samples: usize, seed: u64) -> Self {
        let mut facts = of.facts().clone();
        let sampling = facts.sampling().fixed(samples);
        let places = sampling.sampler.places();
        let members = sampling.step(&sampling.epoch(seed, 0), 0, places, seed, 0);
        let members = members.chunks(sampling.width());
        let members = members.map(|members| members.iter().map(|place| place.sample).collect()).collect();
        facts.repeated = Some(Arc::new(Chosen::new(Arc::clone(&facts.train), members)));
        facts.sampling = Some(sampling);
        Self { of, facts }
    }
}

impl Task for Overfit {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        self.of.loss(batch, mode)
    }

    fn step_loss(&self) -> Option<&dyn StepLoss> {
        self.of.step_loss()
    }

    fn row_figures(&self) -> Option<&dyn RowFigures> {
        self.of.row_figures()
    }

    fn predict(&self) -> Option<&dyn Predict> {
        self.of.predict()
    }

    fn figures(&self, totals: &Totals) -> Vec<(&str, f64)> {
        self.of.figures(totals)
    }

    fn begin_stage(&mut self, stage: &StageView<'_>) -> Result<(), TaskError> {
        self.of.begin_stage(stage)
    }
}
