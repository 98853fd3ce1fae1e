//! Steps that are rehearsed: those of a training, on rank 0 of ranks that do not exist, of which only the memory matters.

use dtrain_common::env::WorkerEnv;
use dtrain_common::recipe::Recipe;
use serde_json::Value;
use tch::Device;

use super::Books;
use crate::TrainError;
use crate::collectives::{LoneGroup, Ranks};
use crate::error::WorkerError;
use crate::run::plan::Place;
use crate::setup::{Opening, Setup};
use crate::step::exchange::Exchange;
use crate::step::recover::Limits;
use crate::step::{Attempt, Cut, Eager, Fault, Feed, Phases, Replica, Stepper, Taken};
use crate::tasks::BuildTask;

/// A model with all that lasts of its training, for one way of cutting that up.
pub(super) struct Rehearsal {
    pub(super) setup: Setup,
    /// Of the stage alone.
    pub(super) recipe: Recipe,
    pub(super) stage: usize,
    ranks: Ranks,
}

/// A rehearsal under way.
pub(super) struct Stage<'a, 'b, F> {
    replica: &'a mut Replica,
    exchange: Exchange,
    stepper: Stepper<'b, F>,
}

impl Rehearsal {
    /// Builds the last phase of `stage`, counted from 0, in which most is trained, for rank 0 of so many.
    pub(super) fn build<T: BuildTask + 'static>(
        recipe: &Recipe,
        survey: Value,
        stage: usize,
        ranks: usize,
        device: Device,
    ) -> Result<Self, WorkerError> {
        let env = WorkerEnv { world_size: ranks, local_world_size: ranks, ..WorkerEnv::single() };
        let opening = Opening::rehearsed(survey);
        let mut setup = Setup::build::<T>(recipe, &opening, &env, device, Some(Place::last_of(stage)))?;
        let ranks = Ranks::new(Box::new(LoneGroup(ranks)));
        if let Some(sync) = &setup.batch_sync {
            sync.connect(ranks.clone());
        }
        setup.replica.model.share(&ranks)?;
        Ok(Self { setup, recipe: recipe.of_stage(stage), stage, ranks })
    }

    /// Begins to take steps on the micro-batches of `feed`.
    pub(super) fn begin<'b, F: Feed>(
        &mut self,
        books: Books<'b>,
        feed: F,
        device: Device,
    ) -> Result<Stage<'_, 'b, F>, TrainError> {
        let replica = &mut self.setup.replica;
        let (model, sync) = (&replica.model, self.setup.batch_sync.clone());
        let mut exchange =
            Exchange::new(self.ranks.clone(), sync, &model.table, (&self.recipe.reduce).into())?;
        exchange.expect(model.task.sums())?;
        let phases = Phases::new(books, Fault::default());
        let limits = Limits::new(device, self.recipe.memory.budget);
        let stepper = Stepper::new(model, feed, Box::new(Eager), phases, limits)?;
        Ok(Stage { replica, exchange, stepper })
    }
}

impl<F: Feed> Stage<'_, '_, F> {
    /// A step in these micro-batches, which consist of groups of `group` samples.
    pub(super) fn step(&mut self, sizes: &[usize], group: Option<usize>) -> Result<Taken, TrainError> {
        let cut = Cut { group, ..cut(sizes) };
        let attempt = self.stepper.step(self.replica, &mut self.exchange, &cut, &mut ())?;
        match attempt {
            Attempt::Taken(taken) => Ok(*taken),
            Attempt::Dropped(shortages) => {
                let largest = sizes.iter().copied().max().unwrap_or_default();
                let owners = self.replica.model.owners();
                Err(self.stepper.limits.exhausted(&shortages, largest, cut.step, owners))
            }
        }
    }
}

/// A step of rank 0 in these micro-batches, which nothing but its memory counts of.
pub(crate) fn cut(sizes: &[usize]) -> Cut {
    let mut end = 0;
    let range = |&size: &usize| {
        end += size;
        end - size..end
    };
    Cut {
        step: 1,
        micro_batches: sizes.iter().map(range).collect(),
        samples: sizes.iter().sum(),
        lr: 0.0,
        seed: 0,
        expected: 1.0,
        clip: Some(1.0),
        group: None,
        is_evaluated: false,
        is_rehearsed: true,
    }
}
