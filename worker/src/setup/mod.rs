//! Builds a trainer from a recipe. Rank 0 first reads the data and the checkpoint and builds everything; the
//! other ranks start afterwards. A run that cannot start therefore fails once, with one message.

pub(crate) mod error;
pub(crate) mod facts;
pub(crate) mod fingerprint;
pub(crate) mod host;
pub(crate) mod nodes;
pub(crate) mod opening;
mod resumed;
pub(crate) mod survey;
mod trained;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dtrain_common::env::WorkerEnv;
use dtrain_common::manifest::{DataFingerprint, Manifest};
use dtrain_common::run_dir::RunDir;
use dtrain_recipe::{self as recipe, AtStageStart, Augment, BatchNorm, MemoryFormat, Recipe, Recompute};
use dtrain_torch_shim::{memory, rng};
use serde_json::Value;
use tch::Device;

use self::error::Result;
pub use self::error::WorkerError;
use self::fingerprint::{check_same_data, unnamed_classes};
use self::opening::Opening;
use self::resumed::{describe_program, describe_rates};
use crate::checkpoint;
use crate::course::{BatchNorms, Needs, PhaseId, RunPlan};
use crate::data::LoaderOptions;
use crate::device::DeviceError;
use crate::models::{self, BatchSync, Registry, Renames};
use crate::optim::Model;
use crate::run::BestKeeper;
use crate::run::TrainError;
use crate::run::evaluate::check_sizes;
use crate::run::{Course, LaidOutPhase};
use crate::state::{LayoutOptions, Stage, Stages, Trained};
use crate::step::exchange::RankSync;
use crate::step::{Kernels, Precision, Replica, StepError};
use crate::tasks::{BuildContext, BuildTask, Task, Totals, build_to_fill, cores};
use crate::tensors::bytes;

/// The parts of a run that do not need the other ranks.
pub(crate) struct Setup {
    pub(crate) replica: Replica,
    /// Sums BatchNorm statistics over the ranks, unless they are local.
    pub(crate) batch_sync: Option<Arc<RankSync>>,
    pub(crate) course: Course,
    /// The checkpoint that the run resumes from.
    pub(crate) resumed: Option<Resumed>,
    /// Messages for people, such as a report on loaded weights.
    pub(crate) notes: Vec<String>,
}

/// The warning about a file without guards.
const UNKNOWN_BRANCHES: &str = "warning: model.file does not contain the model's branches on sizes, so other batches than the \
                                example's may compute something else; write it again by `dtrain import`";

/// The warning about a training from zeros.
const ZERO_WEIGHTS: &str = "warning: model.file has no weights and model.zero_weights is true: its large tensors are zero, so losses \
                            and checkpoints mean nothing";

/// A checkpoint that was read.
pub(crate) struct Resumed {
    /// The named best checkpoint may be missing; rank 0 checks that.
    pub(crate) manifest: Manifest,
    pub(crate) took: Duration,
}

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
        let (mut registry, batch_sync) = registry_of_rank(recipe, env, device);
        let folder = opening.resume.as_deref().filter(|_| only.is_none());
        let task = build_task::<T>(recipe, &opening.survey, env, &mut registry, folder.is_some())?;
        notes.extend(registry.warnings.iter().map(|sentence| format!("warning: {sentence}")));
        let recompute = registry.recompute().clone();
        if recipe.memory.recompute == Recompute::On {
            notes.push(recompute_all(&recompute)?);
        }
        let facts = task.facts();
        let data = DataFingerprint {
            train_samples: facts.train.len() as u64,
            test_samples: facts.test.len() as u64,
            sha256: opening.data.clone(),
            form: fingerprint::FORM,
        };
        check_sizes(task.as_ref())?;
        if facts.lacks_guards {
            notes.push(UNKNOWN_BRANCHES.to_owned());
        }
        let needs = needs(task.as_ref(), &registry, recipe);
        let manifest = folder.map(|folder| read_manifest(folder, opening.unreadable.as_ref())).transpose()?;
        let periods = manifest.as_ref().map(|manifest| manifest.periods_with(data.train_samples));
        let periods = periods.unwrap_or_default();
        let plan = RunPlan::over(recipe, env.world_size, data.train_samples, periods, &needs)?;
        if let (Some(weights), None) = (&recipe.model.weights, folder) {
            notes.push(import_weights(recipe, weights, &registry)?);
        }
        if facts.lacks_weights
            && folder.is_none()
            && only.is_none()
            && (recipe.model.weights.is_none() || has_large_zeros(&registry)?)
        {
            if !recipe.model.zero_weights {
                return Err(WorkerError::NoWeights);
            }
            notes.push(ZERO_WEIGHTS.to_owned());
        }
        let stages = build_stages(recipe, &registry, &plan, env)?;
        if let (Some(folder), Some(manifest)) = (folder, &manifest) {
            check_resume(folder, manifest, task.as_ref(), &data, &plan, &mut notes)?;
            notes.extend(describe_program(manifest.program.as_deref(), opening.program.as_deref()));
            let ranks = env.world_size;
            let periods = plan.data_periods.clone();
            // An earlier recipe that suits these ranks no more has no rates to compare.
            let then = recipe.with_general_of(&manifest.recipe);
            if let Ok(before) = RunPlan::over(&then, ranks, data.train_samples, periods, &needs) {
                // A copy in memory does not last, and a checkpoint that was set aside moves back.
                let own = RunDir::new(&opening.run_dir).checkpoint(manifest.step);
                let is_own = opening.copies.is_some() || folder.starts_with(&opening.run_dir);
                let lasting = if is_own { &own } else { folder };
                notes.extend(describe_rates(recipe, lasting, manifest, &before, &plan));
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
        let mut resumed = folder.map(|folder| resume(folder, unreadable, &mut replica)).transpose()?;
        if let Some(Resumed { manifest, .. }) = &mut resumed {
            manifest.evaluation_missing |= manifest.metrics.is_empty() && plan.ends_by_resize(manifest.step);
        }
        let done = resumed.as_ref().map_or(0, |resumed| resumed.manifest.step);
        // The weights were copied into the table: the memory in which they were read is as large again.
        memory::empty_cache(Device::Cpu).map_err(TrainError::from)?;
        notes.extend(folder.map(|folder| match &opening.copies {
            Some(copies) => format!("resumed from {} after step {done}", describe_copies(&copies.hosts)),
            None => format!("resumed from {} after step {done}", folder.display()),
        }));
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
                recipe: recipe.plain()?,
                best: BestKeeper::new(recipe.checkpoint.best.clone(), opening.best.clone()),
            },
            resumed,
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

/// Sets all segments of the model to be recomputed in backward. A model without segments is an error.
fn recompute_all(recompute: &models::Recompute) -> Result<String> {
    if recompute.segments() == 0 {
        return Err(WorkerError::NoSegments);
    }
    recompute.set_all();
    Ok(format!("recompute: all {} segments of the model are recomputed in backward", recompute.count()))
}

pub(crate) fn registry(recipe: &Recipe, device: Device) -> Registry {
    let mut registry = Registry::new(device);
    registry.channels_last = recipe.model.memory_format == MemoryFormat::ChannelsLast;
    registry
}

/// Works like [`registry`] for a rank of a training.
fn registry_of_rank(recipe: &Recipe, env: &WorkerEnv, device: Device) -> (Registry, Option<Arc<RankSync>>) {
    // Groups may span ranks, at the latest after running out of memory.
    let sums = recipe.model.batchnorm != BatchNorm::Local && env.world_size > 1;
    let batch_sync = sums.then(|| Arc::new(RankSync::new(env.world_size)));
    let mut registry = registry(recipe, device);
    if recipe.model.batchnorm.group().is_some() {
        registry.is_batch_grouped = true;
    }
    registry.set_batch_sync(batch_sync.clone().map(|sync| sync as Arc<dyn BatchSync>));
    (registry, batch_sync)
}

/// Builds the task with its model. If `is_filled`, initial weights are not drawn: a checkpoint replaces them.
fn build_task<T: BuildTask + 'static>(
    recipe: &Recipe,
    survey: &Value,
    env: &WorkerEnv,
    registry: &mut Registry,
    is_filled: bool,
) -> Result<Box<dyn Task>> {
    let survey = serde_json::from_value(survey.clone())?;
    let context = BuildContext { registry, local_ranks: env.local_world_size };
    let task: T = match is_filled {
        true => build_to_fill(recipe, survey, context)?,
        false => T::build(recipe, survey, context)?,
    };
    if let Some(best) = &recipe.checkpoint.best {
        check_figure(&task, &best.figure)?;
    }
    Ok(Box::new(task))
}

fn read_manifest(folder: &Path, unreadable: Option<&Manifest>) -> Result<Manifest> {
    let read = || Manifest::read(folder).map_err(|error| WorkerError::Resume(error.into()));
    unreadable.cloned().map_or_else(read, Ok)
}

/// Checks that a checkpoint matches the task and its data.
fn check_resume(
    folder: &Path,
    manifest: &Manifest,
    task: &dyn Task,
    data: &DataFingerprint,
    plan: &RunPlan,
    notes: &mut Vec<String>,
) -> Result<()> {
    check_same_data(folder, manifest, task)?;
    notes.extend(fingerprint::describe_change(manifest.data.as_ref(), data));
    let is_resized = plan.is_resized(manifest.step);
    notes.extend(is_resized.then(|| plan.describe_rest(manifest.step)));
    notes.extend(unnamed_classes(folder, manifest, task).map(|text| format!("warning: {text}")));
    Ok(())
}

/// Restores the checkpoint, or of an unreadable one what its manifest has.
fn resume(folder: &Path, unreadable: Option<&Manifest>, replica: &mut Replica) -> Result<Resumed> {
    let begun = Instant::now();
    let manifest = match unreadable {
        Some(manifest) => {
            if let (Some(average), Some(updates)) = (&mut replica.model.average, manifest.ema_updates) {
                average.restore(updates);
            }
            manifest.clone()
        }
        None => checkpoint::restore(folder, &mut replica.model).map_err(WorkerError::Resume)?,
    };
    replica.precision.resume(manifest.loss_scale).map_err(StepError::from)?;
    Ok(Resumed { manifest, took: begun.elapsed() })
}

/// Loads the weights file of the recipe into the model, and returns a report.
/// Returns whether a tensor of the size that an import without weights leaves out has no value but zero: a file of weights
/// need not have all of them.
fn has_large_zeros(registry: &Registry) -> Result<bool> {
    const LARGE: u64 = 1 << 20;
    for entry in registry.parameters().chain(registry.buffers()) {
        let tensor = entry.tensor();
        if bytes(tensor) >= LARGE && tensor.f_any()?.f_int64_value(&[])? == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

fn import_weights(recipe: &Recipe, weights: &Path, registry: &Registry) -> Result<String> {
    let renames = Renames::new(&recipe.model.weights_rename)
        .map_err(|error| WorkerError::Rename { reason: error.to_string() })?;
    let report = models::load_renamed(registry, weights, recipe.model.weights_mode, &renames)?;
    Ok(format!("weights from {}: {report}", weights.display()))
}

/// Returns the trained parameters of every phase, and the settings that all phases share.
pub(crate) fn build_stages(
    recipe: &Recipe,
    registry: &Registry,
    plan: &RunPlan,
    env: &WorkerEnv,
) -> Result<Stages> {
    let layout = LayoutOptions {
        first_bucket_bytes: recipe.reduce.first_bucket.0 as usize,
        bucket_bytes: recipe.reduce.bucket.0 as usize,
        shards: if recipe.memory.shard_optimizer { env.world_size } else { 1 },
    };
    let at_start = |number: usize, of: fn(&recipe::Stage) -> AtStageStart| {
        recipe.stage.get(number).map_or(AtStageStart::Continue, of)
    };
    let stage = |(number, phases): (usize, Vec<Trained>)| Stage {
        recipe: recipe.of_stage(number),
        ema: at_start(number, |stage| stage.ema),
        best: at_start(number, |stage| stage.best),
        phases,
    };
    let phases = trained::phases(recipe, registry, plan)?;
    Ok(Stages {
        stages: phases.into_iter().enumerate().map(stage).collect(),
        layout,
        shard: if layout.shards > 1 { env.rank } else { 0 },
        ema: recipe.ema,
    })
}

/// Returns an error if no evaluation of the task has the figure `wanted`.
fn check_figure(task: &dyn Task, wanted: &str) -> Result<()> {
    let nothing = Totals { loss_sum: 0.0, weight: 1.0, sums: vec![0.0; task.facts().sums] };
    let figures = task.figures(&nothing).into_iter().map(|(name, _)| name.to_owned());
    let known: Vec<String> = std::iter::once("loss".to_owned()).chain(figures).collect();
    match known.iter().any(|name| name == wanted) {
        true => Ok(()),
        false => Err(WorkerError::NoFigure { wanted: wanted.to_owned(), known }),
    }
}

/// Returns the requirements of a task's model.
pub(crate) fn needs(task: &dyn Task, registry: &Registry, recipe: &Recipe) -> Needs {
    let facts = task.facts();
    let min_micro_batch = facts.batches.least;
    // The minimum of a program may have another reason.
    let least = match recipe.program() {
        Some(_) => 1 + usize::from(registry.has_small_norms),
        None => min_micro_batch,
    };
    Needs {
        min_micro_batch,
        is_program_min: least < min_micro_batch,
        max_micro_batch: facts.batches.most,
        batch_norms: batch_norms(registry),
        depends: facts.micro_batch_warning.clone(),
        undivided: facts.undivided_buffers.clone(),
        group: recipe.model.batchnorm.group().map(|group| (group, least)),
    }
}

/// Returns which samples share the model's BatchNorm statistics.
pub(crate) fn batch_norms(registry: &Registry) -> BatchNorms {
    match (registry.is_batch_grouped, registry.is_batch_synced()) {
        _ if !registry.has_batch_norms() => BatchNorms::None,
        (true, _) => BatchNorms::Grouped,
        (false, true) => BatchNorms::Synced,
        (false, false) => BatchNorms::Local,
    }
}

/// Returns one rank's share of this machine's cores; at least 1.
pub(crate) fn cores_per_rank(local_world_size: usize) -> usize {
    (cores() / local_world_size.max(1)).max(1)
}

/// Returns the loader's options. Threads: the recipe's number, or the rank's share of the cores.
pub(crate) fn loader_options(recipe: &Recipe, local_world_size: usize) -> LoaderOptions {
    /// Beyond this, more threads rarely help one rank.
    const MOST_THREADS: usize = 8;
    let own_share = cores_per_rank(local_world_size).min(MOST_THREADS);
    LoaderOptions {
        threads: recipe.data.workers.value().unwrap_or(own_share),
        prefetch_batches: 4,
        seed: recipe.train.seed,
        // A custom data set decides itself how to use random numbers.
        augment: recipe.data.augment != Augment::None || recipe.task.facts().is_own,
    }
}
