//! Rehearsals: training steps on rank 0 of ranks that do not exist, to measure memory only.

use std::sync::Arc;

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::{MicroBatch, Recipe, Recompute};
use dtrain_torch_shim::memory::empty_cache;
use serde_json::Value;
use tch::Device;

use super::{Cut, Measured};
use crate::collectives::{LoneGroup, Ranks};
use crate::course::PhaseId;
use crate::data::MicroBatch as Work;
use crate::faults::Fault;
use crate::memory::{MemoryStats, StepMemory, budget};
use crate::run::TrainError;
use crate::setup::Setup;
use crate::setup::error::WorkerError;
use crate::setup::loader::loader_options;
use crate::setup::opening::Opening;
use crate::step::exchange::{Exchange, RankSync};
use crate::step::recover::Limits;
use crate::step::{
    Attempt, Eager, Feed, LoaderFeed, Phases, Precision, Replica, StepError, StepPlan, Stepper, Taken,
};
use crate::tasks::{BuildTask, begin_stage};

/// A model with the state of its training, for one cut.
pub(super) struct Rehearsal {
    pub(super) setup: Setup,
    /// The recipe of the stage alone.
    pub(super) recipe: Recipe,
    pub(super) stage: usize,
    ranks: Ranks,
}

/// Steps of a replica outside of a run.
pub(crate) struct Stage<'a, 'b, F> {
    replica: &'a mut Replica,
    exchange: Exchange,
    stepper: Stepper<'b, F>,
}

impl Rehearsal {
    /// Builds the last phase of `stage`, counted from 0, which trains most parameters, for rank 0 of `ranks`.
    pub(super) fn build<T: BuildTask + 'static>(
        recipe: &Recipe,
        survey: Value,
        stage: usize,
        ranks: usize,
        device: Device,
    ) -> Result<Self, WorkerError> {
        let env = WorkerEnv { world_size: ranks, local_world_size: ranks, ..WorkerEnv::single() };
        let opening = Opening::rehearsed(survey);
        let last = PhaseId { stage, phase: usize::MAX };
        let mut setup = Setup::build::<T>(recipe, &opening, &env, device, Some(last))?;
        begin_stage(setup.replica.model.task.as_mut(), recipe, stage).map_err(TrainError::from)?;
        let ranks = Ranks::new(Box::new(LoneGroup(ranks)));
        if let Some(sync) = &setup.batch_sync {
            sync.connect(ranks.clone());
        }
        setup.replica.model.share(&ranks)?;
        Ok(Self { setup, recipe: recipe.of_stage(stage), stage, ranks })
    }

    /// Sets the precision and the recomputed segments of `cut`.
    pub(super) fn compute_as(&mut self, cut: Cut, device: Device) -> Result<(), WorkerError> {
        let replica = &mut self.setup.replica;
        replica.model.recompute.set(cut.recompute);
        replica.precision = Precision::for_rehearsal(cut.amp, device)?;
        Ok(replica.set_shadow()?)
    }

    /// Prepares steps on the micro-batches of `feed`.
    pub(super) fn begin<'b, F: Feed>(
        &mut self,
        stats: MemoryStats<'b>,
        feed: F,
        device: Device,
    ) -> Result<Stage<'_, 'b, F>, StepError> {
        let (ranks, sync) = (self.ranks.clone(), self.setup.batch_sync.clone());
        Stage::begin(&mut self.setup.replica, ranks, sync, &self.recipe, stats, feed, device)
    }
}

impl<'a, 'b, F: Feed> Stage<'a, 'b, F> {
    /// Prepares steps of `replica` on the micro-batches of `feed`.
    pub(crate) fn begin(
        replica: &'a mut Replica,
        ranks: Ranks,
        sync: Option<Arc<RankSync>>,
        recipe: &Recipe,
        stats: MemoryStats<'b>,
        feed: F,
        device: Device,
    ) -> Result<Self, StepError> {
        let model = &replica.model;
        let mut exchange = Exchange::new(ranks, sync, &model.table, recipe.reduce.clone())?;
        exchange.prepare_statuses(&*model.task.facts().train)?;
        let phases = Phases::new(stats, Fault::default());
        let limits = Limits::new(device, recipe.memory.budget);
        let stepper = Stepper::new(feed, Box::new(Eager), phases, limits)?;
        Ok(Self { replica, exchange, stepper })
    }

    pub(crate) fn step(&mut self, plan: &StepPlan) -> Result<Taken, StepError> {
        match self.stepper.step(self.replica, &mut self.exchange, plan, &mut ())? {
            Attempt::Taken(taken) => Ok(*taken),
            Attempt::Dropped(shortages) => {
                let sizes = plan.micro_batches.iter().map(|range| range.len());
                let largest = sizes.max().unwrap_or_default();
                let owners = self.replica.model.owners();
                Err(self.stepper.limits.exhausted_error(&shortages, largest, plan.step, owners))
            }
        }
    }
}

/// Returns a step of rank 0 with micro-batches of these sizes, for a rehearsal.
pub(crate) fn plan_step(sizes: &[usize]) -> StepPlan {
    let mut end = 0;
    let range = |&size: &usize| {
        end += size;
        end - size..end
    };
    StepPlan {
        step: 1,
        micro_batches: sizes.iter().map(range).collect(),
        samples: sizes.iter().sum(),
        lr: 0.0,
        seed: 0,
        expected_weight: 1.0,
        clip: Some(1.0),
        group: None,
        is_evaluated: false,
        is_rehearsed: true,
    }
}

/// Runs `steps` steps of `stage`, counted from 0, with `cut` on real samples, and measures them: as rank 0 of
/// `cut.ranks`. The other ranks do not exist; they would take the same memory.
pub(crate) fn measure<T: BuildTask + 'static>(
    mut recipe: Recipe,
    survey: Value,
    stage: usize,
    cut: Cut,
    steps: usize,
    limit: u64,
    device: Device,
) -> Result<Measured, WorkerError> {
    budget::enforce(limit, device);
    recipe.memory.micro_batch = MicroBatch::Value(cut.micro_batch);
    recipe.memory.shard_optimizer = cut.shard_optimizer;
    recipe.memory.recompute = Recompute::Auto;
    recipe.model.weights = None;
    let mut rehearsal = Rehearsal::build::<T>(&recipe, survey, stage, cut.ranks, device)?;
    rehearsal.compute_as(cut, device)?;
    let alone = &rehearsal.recipe;
    let partition = alone.partition(cut.ranks, Some(cut.micro_batch))?;
    let ranges = partition.micro_ranges(0);
    let sizes: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
    let warm_up = if device.is_cuda() { WARM_UP } else { 0 };
    let data = rehearsal.setup.replica.model.task.facts().train.clone();
    let (samples, first) = (data.len(), data.largest());
    let work: Vec<Work> = (0..warm_up + steps)
        .flat_map(|_| ranges.iter().cloned())
        .map(|range| {
            // With all members of a sample, as in training: loading takes as long.
            Work::of(0, range.map(|at| ((first + at) % samples) as u32))
        })
        .collect();
    let options = loader_options(alone, cut.ranks);
    let feed = LoaderFeed::start(data, options, work.into_iter(), device)?;
    let mut stage = rehearsal.begin(MemoryStats::Device(device), feed, device)?;
    let plan =
        StepPlan { samples: partition.effective_batch(), group: partition.group(), ..plan_step(&sizes) };
    let step = || {
        let taken = stage.step(&plan)?;
        Ok::<_, WorkerError>((taken.took.as_secs_f64() * 1e3, taken.memory))
    };
    let settle = || Ok(empty_cache(device).map_err(TrainError::from)?);
    let (step_ms, most) = measure_steps(warm_up, steps, step, settle)?;
    Ok(Measured { peak: most.report.peak, owners: most.owners, phases: most.phases, step_ms })
}

/// Unmeasured steps of a GPU: in the first, cuDNN tries algorithms with workspaces that no later step needs.
const WARM_UP: usize = 1;

/// Runs `warm_up` steps, then `settle`, then `steps` measured steps. A step returns its milliseconds and
/// memory. Returns the median time without the first measured step, and the memory at the highest peak.
fn measure_steps<E>(
    warm_up: usize,
    steps: usize,
    mut step: impl FnMut() -> Result<(f64, StepMemory), E>,
    settle: impl FnOnce() -> Result<(), E>,
) -> Result<(f64, StepMemory), E> {
    for _ in 0..warm_up {
        step()?;
    }
    if warm_up > 0 {
        settle()?;
    }
    let counted = (0..steps).map(|_| step()).collect::<Result<Vec<_>, E>>()?;
    let most = counted.iter().map(|(_, memory)| *memory);
    // The first of several equal peaks.
    let most = most.rev().max_by_key(|memory| memory.report.peak);
    // The first step warms caches of the kernels.
    let mut times: Vec<f64> = counted.iter().map(|(ms, _)| *ms).collect();
    let mut times = times.split_off(usize::from(times.len() > 1));
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied();
    Ok((median.unwrap_or_default(), most.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::*;

    /// Returns the measurement after `warm_up` steps, if the first step takes 900 bytes and the others 100,
    /// and how often the cache was emptied.
    fn measured(warm_up: usize) -> ((f64, u64, u64), u64) {
        let (taken, settled) = (Cell::new(0u64), Cell::new(0));
        let step = || {
            taken.set(taken.get() + 1);
            let mut memory = StepMemory::default();
            memory.report.peak = if taken.get() == 1 { 900 } else { 100 };
            memory.report.allocated = taken.get();
            Ok::<_, WorkerError>((1000.0 / taken.get() as f64, memory))
        };
        let settle = || {
            settled.set(settled.get() + 1);
            Ok(())
        };
        let (ms, most) = measure_steps(warm_up, 3, step, settle).unwrap();
        assert_eq!(taken.get(), warm_up as u64 + 3);
        ((ms, most.report.peak, most.report.allocated), settled.get())
    }

    #[test]
    fn algorithm_searches_of_the_first_gpu_step_are_not_measured() {
        assert_eq!(measured(1), ((1000.0 / 3.0, 100, 2), 1));
        assert_eq!(measured(0), ((500.0, 900, 1), 0));
    }
}
