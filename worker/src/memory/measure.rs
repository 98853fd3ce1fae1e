//! What a cut takes, measured: real steps in this process, whose weights are of no further use.

use crate::memory_report::{Owners, PhasePeaks};
use crate::plan::Cut;
use dtrain_common::recipe::{MicroBatch, Recipe, Recompute};
use dtrain_torch_shim::memory::empty_cache;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Device;

use super::rehearsal::Rehearsal;
use super::{Books, StepMemory, budget};
use crate::data::MicroBatch as Work;
use crate::engine::{PlanError, TrainError};
use crate::error::WorkerError;
use crate::setup::loader_options;
use crate::step::{Loading, Precision};
use crate::tasks::BuildTask;

/// A cut that was measured. Sizes are bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// The highest memory.
    pub(crate) peak: u64,
    /// By owner at that moment.
    pub(crate) owners: Owners,
    /// By phase.
    pub(crate) phases: PhasePeaks,
    /// The median time of a step in milliseconds, of the steps behind the first.
    pub(crate) step_ms: f64,
}

/// Runs `steps` steps of `stage`, counted from 0, of rank 0 of `cut.ranks` as `cut` says, on real samples, and measures them. The other ranks do not exist;
/// their memory is as this one's.
///
/// # Errors
/// As a training; out of memory where the cut does not fit `limit` bytes.
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
    recipe.memory.micro_batch = MicroBatch::Size(cut.micro_batch);
    recipe.memory.shard_optimizer = cut.shard_optimizer;
    recipe.memory.recompute = Recompute::Auto;
    recipe.model.weights = None;
    let mut rehearsal = Rehearsal::build::<T>(&recipe, survey, stage, cut.ranks, device)?;
    rehearsal.setup.replica.model.recompute.set(cut.recompute);
    rehearsal.setup.replica.precision = Precision::rehearsed(cut.amp, device)?;

    let alone = &rehearsal.recipe;
    let partition = alone
        .partition(cut.ranks, Some(cut.micro_batch))
        .map_err(PlanError::from)?;
    let ranges = partition.micro_ranges(0);
    let sizes: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
    let watch = Watch {
        warm_up: if device.is_cuda() { WARM_UP } else { 0 },
        steps,
    };
    let data = rehearsal.setup.replica.model.task.train_set();
    let samples = data.len();
    let work: Vec<Work> = (0..watch.all())
        .flat_map(|_| ranges.iter().cloned())
        .map(|range| Work {
            epoch: 0,
            indices: range.map(|at| (at % samples) as u32).collect(),
        })
        .collect();
    let options = loader_options(alone, cut.ranks);
    let feed = Loading::start(data, options, work.into_iter(), device)?;
    let mut stage = rehearsal.begin(Books::Device(device), feed, device)?;
    let mut step = || {
        let taken = stage.step(&sizes, partition.group())?;
        Ok::<_, WorkerError>((taken.took.as_secs_f64() * 1e3, taken.memory))
    };
    let (step_ms, most) = watch.run(&mut step, || Ok(empty_cache(device).map_err(TrainError::from)?))?;
    Ok(Measured {
        peak: most.report.peak,
        owners: most.owners,
        phases: most.phases,
        step_ms,
    })
}

/// Steps of a GPU that are not measured: cuDNN tries its algorithms in the first, with workspaces that no other step takes.
const WARM_UP: usize = 1;

/// Which steps count.
struct Watch {
    warm_up: usize,
    steps: usize,
}

impl Watch {
    fn all(&self) -> usize {
        self.warm_up + self.steps
    }

    /// Takes all steps, each of which says its milliseconds and its memory, and gives the median of the former, of the steps behind the
    /// first, and the latter where it was highest. `settle` is called between what does not count and what does.
    fn run<E>(
        &self,
        step: &mut impl FnMut() -> Result<(f64, StepMemory), E>,
        settle: impl FnOnce() -> Result<(), E>,
    ) -> Result<(f64, StepMemory), E> {
        for _ in 0..self.warm_up {
            step()?;
        }
        if self.warm_up > 0 {
            settle()?;
        }
        let mut times = Vec::new();
        let mut most: Option<StepMemory> = None;
        for _ in 0..self.steps {
            let (ms, memory) = step()?;
            times.push(ms);
            if most.is_none_or(|most| memory.report.peak > most.report.peak) {
                most = Some(memory);
            }
        }
        // The first step warms the kernels' caches.
        let mut times = times.split_off(usize::from(times.len() > 1));
        times.sort_by(f64::total_cmp);
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        Ok((median, most.unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;

    use super::*;

    /// What is measured where the first step takes 900 bytes and the others less, with so many of them to warm up, and how often the
    /// cache was emptied.
    fn measured(warm_up: usize) -> ((f64, u64), u64) {
        let (taken, settled) = (Cell::new(0u64), Cell::new(0));
        let mut step = || {
            taken.set(taken.get() + 1);
            let mut memory = StepMemory::default();
            memory.report.peak = if taken.get() == 1 { 900 } else { 100 + taken.get() };
            Ok::<_, WorkerError>((1000.0 / taken.get() as f64, memory))
        };
        let watch = Watch { warm_up, steps: 3 };
        let (ms, most) = watch
            .run(&mut step, || {
                settled.set(settled.get() + 1);
                Ok(())
            })
            .unwrap();
        assert_eq!(taken.get(), watch.all() as u64);
        ((ms, most.report.peak), settled.get())
    }

    #[test]
    fn what_the_first_step_tries_on_a_gpu_is_not_measured() {
        assert_eq!(measured(1), ((1000.0 / 3.0, 104), 1));
        assert_eq!(measured(0), ((500.0, 900), 0));
    }
}
