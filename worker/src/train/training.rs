//! The training of a run: what its first step needs.

use std::time::Instant;

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::Recipe;
use tch::{Device, Kind, Tensor};

use crate::collectives::{Collective, Ranks};
use crate::faults::Fault;
use crate::memory::MemoryStats;
use crate::run::{RetryState, TrainError, Training};
use crate::setup::Setup;
use crate::setup::loader::loader_options;
use crate::step::exchange::Exchange;
use crate::step::recover::Limits;
use crate::step::{LoaderFeed, Phases, Stepper, new_executor};

/// Broadcasts rank 0's parameters and buffers, so that all ranks begin with the same state.
pub(super) fn share_state(ranks: &Ranks, setup: &mut Setup) -> Result<(), TrainError> {
    let model = &mut setup.replica.model;
    model.share(ranks)?;
    // Ranks exchange values of these dtypes as bytes or as pairs.
    let bytes = |tensor: &Tensor| match tensor.kind() {
        Kind::Bool | Kind::Int16 => tensor.f_view_dtype(Kind::Uint8),
        _ if tensor.is_complex() => tensor.f_view_as_real(),
        _ => Ok(tensor.shallow_clone()),
    };
    let data = model.table.data().map(bytes).collect::<Result<Vec<_>, _>>()?;
    let all: Vec<_> = data.iter().map(|tensor| Collective::Broadcast(tensor, 0)).collect();
    ranks.start_all(&all)?.wait()?;
    Ok(())
}

/// Makes a training of `setup`; the loader begins at once.
pub(super) fn training<'a>(
    recipe: &'a Recipe,
    setup: Setup,
    ranks: Ranks,
    env: &WorkerEnv,
    device: Device,
    fault: Fault,
) -> Result<Training<'a>, TrainError> {
    let Setup { replica, course, batch_sync, .. } = setup;
    let model = &replica.model;
    let loader = loader_options(recipe, env.local_world_size);
    let facts = model.task.facts();
    let work = course.plan.micro_batches(ranks.rank(), course.done, &facts.sampling());
    let feed = LoaderFeed::start(facts.train.clone(), loader, work, device)?;
    let mut exchange = Exchange::new(ranks, batch_sync, &model.table, recipe.reduce.clone())?;
    exchange.prepare_statuses(&*facts.train)?;
    let phases = Phases::new(MemoryStats::Device(device), fault);
    let limits = Limits::new(device, recipe.memory.budget);
    let executor = new_executor(recipe.model.compile, device);
    Ok(Training {
        stepper: Stepper::new(feed, executor, phases, limits)?,
        retry: RetryState::new(loader, &course.plan),
        recipe,
        course,
        replica,
        exchange,
        began: Instant::now(),
    })
}
