//! The task of a run with its model.

use std::sync::Arc;

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::{BatchNorm, MemoryFormat, Recipe};
use serde_json::Value;
use tch::Device;

use crate::data::CacheBudget;
use crate::models::{self, BatchSync, Registry};
use crate::setup::base;
use crate::setup::error::{Result, WorkerError};
use crate::setup::needs::check_figures;
use crate::step::exchange::RankSync;
use crate::tasks::{BuildContext, BuildTask, Overfit, Task, build_to_fill};

/// Makes the registry in which a recipe's network is built; call [`base::settle`] behind that.
pub(crate) fn registry(recipe: &Recipe, device: Device) -> Result<Registry> {
    let mut registry = Registry::new(device);
    registry.channels_last = recipe.model.memory_format == MemoryFormat::ChannelsLast;
    base::prepare(recipe, &mut registry)?;
    Ok(registry)
}

/// Works like [`registry`] for a rank of a training.
pub(crate) fn registry_of_rank(
    recipe: &Recipe,
    env: &WorkerEnv,
    device: Device,
) -> Result<(Registry, Option<Arc<RankSync>>)> {
    // Groups may span ranks, at the latest after running out of memory.
    let is_joint = matches!(recipe.model.batchnorm, BatchNorm::Synced | BatchNorm::Group(_));
    let sums = is_joint && env.world_size > 1;
    let batch_sync = sums.then(|| Arc::new(RankSync::new(env.world_size)));
    let mut registry = registry(recipe, device)?;
    registry.is_batch_grouped = recipe.model.batchnorm.group().is_some();
    registry.is_batch_frozen = recipe.model.batchnorm == BatchNorm::Frozen;
    registry.dropout = recipe.model.dropout.unwrap_or(0.0);
    registry.drop_path = recipe.model.drop_path.unwrap_or(0.0);
    registry.set_batch_sync(batch_sync.clone().map(|sync| sync as Arc<dyn BatchSync>));
    Ok((registry, batch_sync))
}

/// Builds the task with its model. If `is_filled`, initial weights are not drawn: a checkpoint replaces them.
pub(crate) fn build_task<T: BuildTask + 'static>(
    recipe: &Recipe,
    survey: &Value,
    env: &WorkerEnv,
    registry: &mut Registry,
    cache: CacheBudget,
    is_filled: bool,
) -> Result<Box<dyn Task>> {
    let survey = serde_json::from_value(survey.clone())?;
    let context = BuildContext { registry, local_ranks: env.local_world_size, cache };
    let task: T = match is_filled {
        true => build_to_fill(recipe, survey, context)?,
        false => T::build(recipe, survey, context)?,
    };
    base::settle(recipe, registry)?;
    check_figures(&task, recipe)?;
    Ok(match recipe.train.overfit {
        Some(samples) => Box::new(Overfit::new(Box::new(task), samples, recipe.train.seed)),
        None => Box::new(task),
    })
}

/// Sets all segments of the model to be recomputed in backward. A model without segments is an error.
pub(crate) fn recompute_all(recompute: &models::Recompute) -> Result<String> {
    if recompute.segments() == 0 {
        return Err(WorkerError::NoSegments);
    }
    recompute.set_all();
    Ok(format!("recompute: all {} segments of the model are recomputed in backward", recompute.count()))
}
