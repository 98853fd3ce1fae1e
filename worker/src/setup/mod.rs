//! Builds a trainer from a recipe. Rank 0 first reads the data and the checkpoint and builds everything; the
//! other ranks start afterwards. A run that cannot start therefore fails once, with one message.

pub(crate) mod base;
pub(crate) mod error;
pub(crate) mod facts;
pub(crate) mod fingerprint;
pub(crate) mod host;
pub(crate) mod images;
pub(crate) mod loader;
pub(crate) mod needs;
pub(crate) mod nodes;
pub(crate) mod opening;
pub(crate) mod predict_error;
mod restore;
mod resumed;
pub(crate) mod room;
pub(crate) mod survey;
pub(crate) mod task;
pub(crate) mod trained;
pub(crate) mod weights;

use std::sync::Arc;

use dtrain_common::env::WorkerEnv;
use dtrain_common::manifest::DataFingerprint;
use dtrain_common::run_dir::RunDir;
use dtrain_recipe::{AnyRecipe, Recipe, Recompute};
use dtrain_torch_shim::{memory, rng};
use tch::Device;

use self::error::Result;
pub use self::error::WorkerError;
use self::needs::{check_members, check_test_names, needs};
use self::opening::Opening;
use self::restore::{Resumed, read_manifest, restore};
use self::task::{build_task, recompute_all, registry_of_rank};
use crate::course::{PhaseId, RunPlan};
use crate::data::{CacheBudget, cache_bytes};
use crate::device::DeviceError;
use crate::optim::Model;
use crate::run::eval_sizes::check_sizes;
use crate::run::{BestKeeper, Course, LaidOutPhase, Patience, TrainError};
use crate::step::exchange::RankSync;
use crate::step::{Kernels, Precision, Replica};
use crate::tasks::BuildTask;

/// The parts of a run that do not need the other ranks.
pub(crate) struct Setup {
    pub(crate) replica: Replica,
    /// Sums BatchNorm statistics over the ranks, unless they are local.
    pub(crate) batch_sync: Option<Arc<RankSync>>,
    pub(crate) course: Course,
    /// The checkpoint that the run resumes from.
    pub(crate) resumed: Option<Resumed>,
    /// The memory for decoded images.
    pub(crate) cache: CacheBudget,
    /// Messages for people, such as a report on loaded weights.
    pub(crate) notes: Vec<String>,
}

/// The warning about a file without guards.
const UNKNOWN_BRANCHES: &str = "warning: model.file does not contain the model's branches on sizes, so other batches than the \
                                example's may compute something else; write it again by `dtrain import`";

impl Setup {
    /// Builds the first phase of the run, or the phase in which its checkpoint was written; the training then
    /// enters later phases itself. With `only`, builds that phase with new weights and state, even if there
    /// is a checkpoint.
    pub(crate) fn build<T: BuildTask + 'static>(
        recipe: &Recipe,
        opening: &Opening,
        env: &WorkerEnv,
        device: Device,
        only: Option<PhaseId>,
    ) -> Result<Self> {
        let mut notes = Vec::new();
        // All ranks draw the same weights; rank 0's are broadcast nevertheless.
        rng::seed(recipe.train.seed).map_err(|source| DeviceError::Failed { rank: env.rank, source })?;
        let (mut registry, batch_sync) = registry_of_rank(recipe, env, device)?;
        let folder = opening.resume.as_deref().filter(|_| only.is_none());
        let cache = CacheBudget::new(cache_bytes(recipe.data.cache, env.local_world_size));
        let (survey, is_filled) = (&opening.survey, folder.is_some());
        let task = build_task::<T>(recipe, survey, env, &mut registry, cache.clone(), is_filled)?;
        notes.extend(registry.warnings.iter().map(|sentence| format!("warning: {sentence}")));
        let recompute = registry.recompute().clone();
        if recipe.memory.recompute == Recompute::On {
            notes.push(recompute_all(&recompute)?);
        }
        let facts = task.facts();
        let data = DataFingerprint {
            train_samples: facts.sampling().sampler.places() as u64,
            test_samples: facts.test.len() as u64,
            val_samples: facts.val.as_ref().map(|val| val.len() as u64),
            sha256: opening.data.clone(),
            form: fingerprint::FORM,
        };
        check_sizes(task.as_ref())?;
        check_members(task.as_ref())?;
        check_test_names(task.as_ref())?;
        if facts.lacks_guards {
            notes.push(UNKNOWN_BRANCHES.to_owned());
        }
        let needs = needs(task.as_ref(), &registry, recipe);
        let manifest = folder.map(|folder| read_manifest(folder, opening.unreadable.as_ref())).transpose()?;
        let periods = manifest.as_ref().map(|manifest| manifest.periods_with(data.train_samples));
        let periods = periods.unwrap_or_default();
        let plan = RunPlan::over(recipe, env.world_size, data.train_samples, periods, &needs)?;
        // A checkpoint has no base.
        let has_base = registry.has_base();
        if folder.is_none() || has_base {
            notes.extend(weights::load(recipe, &registry, facts.lacks_weights && only.is_none())?);
        }
        let base = if env.rank == 0 { base::describe(&registry)? } else { None };
        let stages = trained::stages(recipe, &registry, &plan, env)?;
        if let (Some(folder), Some(manifest)) = (folder, &manifest) {
            base::check_same(folder, manifest.base.as_ref(), base.as_ref())?;
            notes.extend(resumed::check_data(folder, manifest, task.as_ref(), &data, &plan)?);
            notes.extend(resumed::describe_program(manifest.program.as_deref(), opening.program.as_deref()));
            let ranks = env.world_size;
            let periods = plan.data_periods.clone();
            // An earlier recipe that suits these ranks no more has no rates to compare.
            let then = recipe.with_general_of(&manifest.recipe);
            if let Ok(before) = RunPlan::over(&then, ranks, data.train_samples, periods, &needs) {
                // A copy in memory does not last, and a checkpoint that was set aside moves back.
                let own = RunDir::new(&opening.run_dir).checkpoint(manifest.step);
                let is_own = opening.copies.is_some() || folder.starts_with(&opening.run_dir);
                let lasting = if is_own { &own } else { folder };
                notes.extend(resumed::describe_rates(recipe, lasting, manifest, &before, &plan));
            }
        }
        let step = manifest.as_ref().map_or(0, |manifest| manifest.step);
        // At a boundary of phases, the state is still that of the phase before.
        let id = plan.existing_phase(only.unwrap_or_else(|| plan.phase_at(step.saturating_sub(1))));
        let model = Model::new(task, registry, recompute, &stages, id)?;
        let mut replica = Replica::new(model, Precision::new(&recipe.precision, device)?)?;
        if let Some(kernels) = Kernels::new(recipe, device)? {
            kernels.apply().map_err(TrainError::from)?;
        }
        let unreadable = opening.unreadable.as_ref();
        let mut resumed = folder.map(|folder| restore(folder, unreadable, &mut replica)).transpose()?;
        if let Some(Resumed { manifest, .. }) = &mut resumed {
            // A node's own copy of the checkpoint may lack what rank 0 has added to its own.
            if let Some(of_rank_0) = opening.nodes.as_ref().and_then(|nodes| nodes.manifest.as_ref()) {
                manifest.stopping.clone_from(&of_rank_0.stopping);
                manifest.evaluation_missing = of_rank_0.evaluation_missing;
            }
            manifest.evaluation_missing |= manifest.metrics.is_empty() && plan.ends_by_resize(manifest.step);
        }
        let done = resumed.as_ref().map_or(0, |resumed| resumed.manifest.step);
        // The weights were copied into the table: the memory in which they were read is as large again.
        memory::empty_cache(Device::Cpu).map_err(TrainError::from)?;
        notes.extend(folder.map(|folder| match &opening.copies {
            Some(copies) => format!("resumed from {} after step {done}", describe_copies(&copies.hosts)),
            None => format!("resumed from {} after step {done}", folder.display()),
        }));
        let figures = |recipe: &AnyRecipe| recipe.section("model").get("figures").cloned();
        let plain = recipe.plain()?;
        let (mut best, mut stopping) = (opening.best.clone(), None);
        if let Some(Resumed { manifest, .. }) = &resumed {
            // The count of another run is not this run's.
            stopping = manifest.stopping.clone().filter(|_| !opening.is_foreign);
            // Another figure may have the same name.
            if figures(&manifest.recipe) != figures(&plain) {
                let is_sought = best.take().is_some();
                let is_counted = stopping.take().is_some();
                let note = |what| format!("model.figures changed, so {what} anew");
                notes.extend(is_sought.then(|| note("the best checkpoint is sought")));
                notes.extend(is_counted.then(|| note("train.stop_early counts")));
            }
        }
        Ok(Self {
            replica,
            batch_sync,
            course: Course {
                plan,
                stages,
                done,
                current: LaidOutPhase::new(id),
                data,
                program: opening.program.clone(),
                base,
                recipe: plain,
                best: BestKeeper::new(recipe.checkpoint.best.clone(), best),
                patience: Patience::new(recipe.train.stop_early.clone(), stopping),
            },
            resumed,
            cache,
            notes,
        })
    }
}

fn describe_copies(hosts: &[String]) -> String {
    match hosts {
        [] => "the copy in memory".to_owned(),
        [host] => format!("the copy in memory of {host}"),
        hosts => format!("the copies in memory of {}", hosts.join(", ")),
    }
}
