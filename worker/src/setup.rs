//! From a recipe to what a trainer is made of. Rank 0 goes first: it looks at the data and the checkpoint, builds
//! everything, and only then lets the others begin, so that a run that cannot begin fails once, with one message.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dtrain_common::env::WorkerEnv;
use dtrain_common::manifest::{BestSoFar, DataMark, Manifest};
use dtrain_common::recipe::{self, Augment, BatchNorm, MemoryFormat, Passage, Recipe};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Device;

use super::error::WorkerError;
use super::{data_mark, recompute, trained};
use crate::checkpoint;
use crate::data::LoaderOptions;
use crate::engine::{BatchNorms, Kernels, Needs, Place, Precision, RankSync, RunPlan, TrainError};
use crate::models::{self, BatchSync, LoadReport, Registry, Renames};
use crate::state::{LayoutOptions, Model, Stage, Stages, Trained};
use crate::tasks::{BATCH_NORM, BuildTask, Site, Task, Totals, build_to_fill, has_batch_norm};

/// What rank 0 tells the others before the run begins.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Opening {
    /// Where the run writes.
    pub(crate) run_dir: PathBuf,
    /// The checkpoint to resume from.
    pub(crate) resume: Option<PathBuf>,
    /// Whether it is a copy in memory.
    #[serde(default)]
    pub(crate) from_memory: bool,
    /// Whether it lies in another run's folder, and stays there.
    #[serde(default)]
    pub(crate) is_anothers: bool,
    /// The best checkpoint by then, which this run has.
    #[serde(default)]
    pub(crate) best: Option<BestSoFar>,
    /// The task's survey of the data.
    pub(crate) survey: serde_json::Value,
    /// The survey's digest.
    pub(crate) data: String,
}

impl Opening {
    /// That of a run that only sees what it takes: it writes nothing and begins with nothing.
    pub(crate) fn rehearsed(survey: serde_json::Value) -> Self {
        Self {
            run_dir: PathBuf::new(),
            resume: None,
            from_memory: false,
            is_anothers: false,
            best: None,
            survey,
            data: String::new(),
        }
    }
}

/// Everything of a run that does not need the other ranks.
pub(crate) struct Setup {
    pub(crate) model: Model,
    /// What the model's normalisations sum over the ranks by, where they do.
    pub(crate) batch_sync: Option<Arc<RankSync>>,
    pub(crate) precision: Precision,
    pub(crate) plan: RunPlan,
    pub(crate) stages: Stages,
    /// The phase that the model is laid out for.
    pub(crate) place: Place,
    /// Steps taken before, by the checkpoint.
    pub(crate) done: u64,
    /// The figures of the evaluation that the checkpoint was written after.
    pub(crate) earlier_metrics: BTreeMap<String, f64>,
    /// The best checkpoint by then, by the checkpoint: whether this run has it is for rank 0 to see.
    pub(crate) earlier_best: Option<BestSoFar>,
    /// Whether the evaluation of that checkpoint is still to be made.
    pub(crate) owes_evaluation: bool,
    /// How long the checkpoint took to read.
    pub(crate) resumed_in: Option<Duration>,
    /// What is trained on.
    pub(crate) data: DataMark,
    /// A sentence for people: what was loaded besides the recipe's plain meaning.
    pub(crate) notes: Vec<String>,
}

impl Setup {
    /// Builds the phase that the run begins with, or that its checkpoint ends in: the trainer then goes into the next by itself,
    /// as it does in a run that was not interrupted. With `only` it is this phase, with new weights and new state whatever there
    /// is to resume from: to see what the phase takes.
    ///
    /// # Errors
    /// Whatever is wrong with the recipe, the model, or the checkpoint.
    pub(crate) fn build<T: BuildTask + 'static>(
        recipe: &Recipe,
        opening: &Opening,
        env: &WorkerEnv,
        device: Device,
        only: Option<Place>,
    ) -> Result<Self, WorkerError> {
        let (rank, ranks) = (env.rank, env.world_size);
        let mut notes = Vec::new();
        // Every rank draws the same weights; rank 0's are sent to the others all the same.
        tch::manual_seed(recipe.train.seed as i64);
        let mut registry = Registry::new(device);
        registry.channels_last(recipe.model.memory_format == MemoryFormat::ChannelsLast);
        let batch_sync = (recipe.model.batchnorm == BatchNorm::Synced && ranks > 1)
            .then(|| Arc::new(RankSync::new(ranks)));
        registry.set_batch_sync(batch_sync.clone().map(|sync| sync as Arc<dyn BatchSync>));
        let survey = serde_json::from_value(opening.survey.clone())?;
        let site = Site {
            registry: &mut registry,
            local_ranks: env.local_world_size,
        };
        let resume = opening.resume.as_deref().filter(|_| only.is_none());
        let task: Box<T> = Box::new(match resume {
            Some(_) => build_to_fill(recipe, survey, site)?,
            None => T::build(recipe, survey, site)?,
        });
        if let Some(best) = &recipe.checkpoint.best {
            has_figure(task.as_ref(), &best.figure)?;
        }
        let recompute = recompute::begin(recipe, &registry, &mut notes)?;
        let samples = task.train_set().len() as u64;
        let data = DataMark {
            train_samples: samples,
            test_samples: task.test_set().len() as u64,
            sha256: opening.data.clone(),
        };
        let plan = RunPlan::new(recipe, ranks, samples, &needs(task.as_ref(), &registry))?;
        if let (Some(weights), None) = (&recipe.model.weights, resume) {
            let report = import(recipe, weights, &registry)?;
            notes.push(format!("weights from {}: {report}", weights.display()));
        }
        let stages = stages(recipe, &registry, &plan, rank, ranks)?;
        let resume = match resume {
            Some(folder) => {
                let manifest = Manifest::read(folder).map_err(|error| WorkerError::Resume(error.into()))?;
                same_data(folder, &manifest, task.as_ref())?;
                notes.extend(data_mark::changed(manifest.data.as_ref(), &data));
                notes.extend(
                    unnamed_classes(folder, &manifest, task.as_ref()).map(|text| format!("warning: {text}")),
                );
                Some((folder, manifest.step))
            }
            None => None,
        };
        // At a boundary the state is still that of the step before.
        let last = resume.map_or(0, |(_, step)| step.saturating_sub(1));
        let place = plan.nearest(only.unwrap_or_else(|| plan.place(last)));
        let mut model = Model::new(task, registry, recompute, &stages, place)?;
        let mut precision = Precision::new(&recipe.precision, device)?;
        if let Some(kernels) = Kernels::new(recipe, device)? {
            kernels.apply().map_err(TrainError::from)?;
        }
        let (mut done, mut earlier_metrics, mut earlier_best) = (0, BTreeMap::new(), None);
        let (mut owes_evaluation, mut resumed_in) = (false, None);
        if let Some((folder, _)) = resume {
            let begun = Instant::now();
            let manifest = checkpoint::restore(folder, &mut model).map_err(WorkerError::Resume)?;
            resumed_in = Some(begun.elapsed());
            precision.resume(manifest.loss_scale).map_err(TrainError::from)?;
            done = manifest.step;
            earlier_metrics = manifest.metrics;
            owes_evaluation = manifest.evaluation_owed;
            earlier_best = manifest.best;
            notes.push(match opening.from_memory {
                true => format!("resumed from the copy in memory after step {done}: nothing is lost"),
                false => format!("resumed from {} after step {done}", folder.display()),
            });
        }
        Ok(Self {
            model,
            batch_sync,
            precision,
            plan,
            stages,
            place,
            done,
            earlier_metrics,
            earlier_best,
            owes_evaluation,
            resumed_in,
            data,
            notes,
        })
    }
}

/// Fills the model from the file that the recipe names.
fn import(recipe: &Recipe, weights: &Path, registry: &Registry) -> Result<LoadReport, WorkerError> {
    let renames = Renames::new(&recipe.model.weights_rename).map_err(|error| {
        let reason = error.to_string();
        WorkerError::Rename { reason }
    })?;
    let mode = recipe.model.weights_mode.into();
    Ok(models::load_renamed(registry, weights, mode, &renames)?)
}

/// What is trained in every phase, and what is the same in all of them.
fn stages(
    recipe: &Recipe,
    registry: &Registry,
    plan: &RunPlan,
    rank: usize,
    ranks: usize,
) -> Result<Stages, WorkerError> {
    let layout = LayoutOptions {
        first_bucket_bytes: recipe.reduce.first_bucket.0 as usize,
        bucket_bytes: recipe.reduce.bucket.0 as usize,
        shards: if recipe.memory.shard_optimizer { ranks } else { 1 },
    };
    let passage = |number: usize, of: fn(&recipe::Stage) -> Passage| {
        recipe.stage.get(number).map_or(Passage::Continue, of)
    };
    let stage = |(number, phases): (usize, Vec<Trained>)| Stage {
        recipe: recipe.of_stage(number),
        ema: passage(number, |stage| stage.ema),
        best: passage(number, |stage| stage.best),
        phases,
    };
    Ok(Stages {
        stages: trained::phases(recipe, registry, plan)?
            .into_iter()
            .enumerate()
            .map(stage)
            .collect(),
        layout,
        shard: if layout.shards > 1 { rank } else { 0 },
        ema: recipe.ema,
    })
}

/// Refuses a checkpoint that keeps something else with its weights than the task does now, or whose classes have other names: its
/// outputs would mean something else.
pub(crate) fn same_data(folder: &Path, manifest: &Manifest, task: &dyn Task) -> Result<(), WorkerError> {
    if let Some(differing) = other_classes(&manifest.class_names, task.class_names()) {
        let folder = folder.to_owned();
        return Err(WorkerError::OtherClasses { folder, differing });
    }
    let differing = differing(&manifest.extra, &task.extra());
    if differing.is_empty() {
        return Ok(());
    }
    let folder = folder.to_owned();
    Err(WorkerError::OtherData { folder, differing })
}

/// What is said of a checkpoint without names of classes where the data has them; nothing otherwise.
pub(crate) fn unnamed_classes(folder: &Path, manifest: &Manifest, task: &dyn Task) -> Option<String> {
    let unnamed = manifest.class_names.is_empty() && !task.class_names().is_empty();
    unnamed.then(|| {
        format!(
            "{} holds no names of classes, since an earlier dtrain wrote it: that the classes of the data have the order of its training \
             cannot be checked",
            folder.display()
        )
    })
}

/// The keys under which a checkpoint and a run that resumes from it keep different things.
fn differing(then: &Value, now: &Value) -> Vec<String> {
    match (then, now) {
        (Value::Object(then), Value::Object(now)) => {
            let keys: BTreeSet<&String> = then.keys().chain(now.keys()).collect();
            let differs = |key: &&&String| then.get(key.as_str()) != now.get(key.as_str());
            keys.iter().filter(differs).map(|key| key.to_string()).collect()
        }
        _ if then == now => Vec::new(),
        _ => vec!["extra".to_owned()],
    }
}

/// The first classes that have other names than then, in words; none where they are the same, or some have no names.
fn other_classes(then: &[String], now: &[String]) -> Option<String> {
    /// More would not be read.
    const TOLD: usize = 3;
    if then == now || then.is_empty() || now.is_empty() {
        return None;
    }
    let name = |names: &[String], class: usize| match names.get(class) {
        Some(name) => format!("{name:?}"),
        None => "not there".to_owned(),
    };
    let differing: Vec<usize> = (0..then.len().max(now.len()))
        .filter(|&class| then.get(class) != now.get(class))
        .collect();
    let told: Vec<String> = differing
        .iter()
        .take(TOLD)
        .map(|&class| {
            format!(
                "class {class} is {} there and {} here",
                name(then, class),
                name(now, class)
            )
        })
        .collect();
    let more = match differing.len() - told.len() {
        0 => String::new(),
        more => format!(", and {more} more differ"),
    };
    Some(format!("{}{more}", told.join(", ")))
}

/// Refuses to seek the best by a figure that no evaluation of the task will have.
fn has_figure(task: &dyn Task, wanted: &str) -> Result<(), WorkerError> {
    let nothing = Totals {
        loss_sum: 0.0,
        weight: 1.0,
        sums: vec![0.0; task.sums()],
    };
    let mut known = vec!["loss".to_owned()];
    known.extend(
        task.metrics(&nothing)
            .into_iter()
            .map(|(name, _)| name.to_owned()),
    );
    if known.iter().any(|name| name == wanted) {
        return Ok(());
    }
    let wanted = wanted.to_owned();
    Err(WorkerError::NoFigure { wanted, known })
}

/// What the plan must know of the model.
fn needs(task: &dyn Task, registry: &Registry) -> Needs {
    let batch_norms = match (has_batch_norm(registry), registry.is_batch_synced()) {
        (false, _) => BatchNorms::None,
        (true, false) => BatchNorms::Local,
        (true, true) => BatchNorms::Synced,
    };
    Needs {
        min_micro_batch: task.min_micro_batch(),
        batch_norms,
        // The plan knows of BatchNorm by itself, and what helps.
        depends: task.micro_batch_matters().filter(|words| words != BATCH_NORM),
    }
}

/// How images are loaded: the recipe's number of threads, or the rank's share of the machine's cores.
pub(crate) fn loader_options(recipe: &Recipe, local_world_size: usize) -> LoaderOptions {
    /// Beyond this, more threads rarely help one rank.
    const MOST_THREADS: usize = 8;
    let own_share = share_of_cores(local_world_size).min(MOST_THREADS);
    LoaderOptions {
        threads: recipe.data.workers.count().unwrap_or(own_share),
        prefetch_batches: 4,
        seed: recipe.train.seed,
        // What a data set of the user's own makes of random numbers is its own affair.
        augment: recipe.data.augment != Augment::None || recipe.task == recipe::Task::Custom,
    }
}

/// What one of so many ranks on this machine has of its cores; at least one.
pub(crate) fn share_of_cores(local_world_size: usize) -> usize {
    (cores() / local_world_size.max(1)).max(1)
}

/// The machine's cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
