//! Evaluates a checkpoint's model: for `dtrain eval`, and for the test at the end of a run.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use dtrain_common::batch::Partition;
use dtrain_common::env::WorkerEnv;
use dtrain_common::exit::ExitStatus;
use dtrain_common::manifest::Manifest;
use dtrain_common::progress;
use dtrain_common::run_dir::{Resume, RunDir, follow};
use dtrain_common::units::ByteSize;
use dtrain_recipe::{OnFailure, Recipe};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Device;

use super::by_class;
use crate::checkpoint;
use crate::collectives::{Ranks, Rendezvous};
use crate::data::packed::Packed;
use crate::data::{CacheBudget, cache_bytes};
use crate::device;
use crate::faults::Fault;
use crate::heartbeat::Heartbeat;
use crate::memory::{self, Owners, budget};
use crate::metrics::{Line, MetricsLog, Progress, ProgressStyle, TestRecord, figures};
use crate::models::Registry;
use crate::planning::{EvalQuestion, EvalWeights};
use crate::run::evaluate::{Evaluated, Evaluator};
use crate::run::followers::{ByClass, SampleFolders, TelemetryHandle};
use crate::run::shown::Show;
use crate::run::{Followers, TrainError, peak_memory};
use crate::setup::base;
use crate::setup::error::{Result, WorkerError};
use crate::setup::fingerprint::{check_same_data, unnamed_classes};
use crate::setup::loader::loader_options;
use crate::setup::nodes::send_manifest;
use crate::setup::survey::{self, Surveyed};
use crate::setup::task::registry;
use crate::setup::weights;
use crate::step::recover::Limits;
use crate::step::{Kernels, Precision, Warned};
use crate::stop::StopFlag;
use crate::tasks::{BuildContext, BuildTask, TEST, begin_stage, build_to_fill};

/// The message of rank 0 to the other ranks.
#[derive(Debug, Serialize, Deserialize)]
struct Opening {
    checkpoint: PathBuf,
    survey: Value,
    /// The lists to which the survey refers, in this rank's memory.
    #[serde(skip)]
    lists: Vec<Packed<u8>>,
}

/// The model to evaluate, and its environment.
pub(crate) struct Evaluation<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) survey: &'a Value,
    /// The checkpoint, which rank 0 has verified or written.
    pub(crate) folder: PathBuf,
    /// Whether every rank can read it; otherwise rank 0 sends the weights.
    pub(crate) is_shared: bool,
    pub(crate) weights: EvalWeights,
    /// Samples of a batch; by default, the micro-batch of the recipe's training.
    pub(crate) batch: Option<usize>,
    /// Most samples of each set; all without a limit.
    pub(crate) samples: Option<usize>,
    pub(crate) env: &'a WorkerEnv,
    pub(crate) ranks: &'a Ranks,
    pub(crate) device: Device,
    pub(crate) stop: &'a StopFlag,
}

/// Returns the followers of an evaluation.
pub(super) fn followers_of(style: ProgressStyle) -> Followers<'static> {
    Followers::new(vec![Box::new(Heartbeat::from_env()), Box::new(Progress::new(style, 0, 0, 1, 0))])
}

/// Answers the question of `dtrain eval`. Every rank calls this; rank 0 prints the result to standard output.
pub(crate) fn run<T: BuildTask + 'static>(
    recipe: &Recipe,
    env: &WorkerEnv,
    question: &EvalQuestion,
) -> Result<ExitStatus> {
    budget::configure(recipe.memory.budget.value(), env)?;
    let device = device::choose(env)?;
    budget::allow(recipe.memory.budget, device, env.local_world_size).map_err(TrainError::from)?;
    let rendezvous = Rendezvous::open(env.clone())?;
    let opening = if env.rank == 0 {
        let opening = open::<T>(recipe, question).inspect_err(|error| {
            rendezvous.announce_failure(&error.to_string(), error.exit_status().code())
        })?;
        rendezvous.announce(&serde_json::to_vec(&opening)?)?;
        survey::serve(&opening.survey, &opening.lists, &rendezvous, env)?;
        opening
    } else {
        let mut opening: Opening = serde_json::from_slice(&rendezvous.receive_opening()?)?;
        opening.lists = survey::receive(&mut opening.survey, &[], &rendezvous, env)?;
        opening
    };
    let ranks = Ranks::new(rendezvous.connect(device)?);
    let evaluation = Evaluation {
        recipe,
        survey: &opening.survey,
        folder: opening.checkpoint,
        is_shared: env.is_one_node(),
        weights: question.weights,
        batch: question.batch,
        samples: None,
        env,
        ranks: &ranks,
        device,
        // An evaluation has nothing to save, so signals end it at once.
        stop: &StopFlag::default(),
    };
    let followers = &mut followers_of(ProgressStyle::detect(env.rank));
    let records = evaluate::<T>(&evaluation, followers, false, &mut |_| Ok(()))?;
    let peaks = peak_memory(&ranks, memory::report(device).map_err(TrainError::from)?.peak)?;
    ranks.shutdown().map_err(TrainError::from)?;
    if env.rank == 0 {
        for record in records.iter().flatten() {
            print_result(record, &peaks, question.json)?;
        }
    }
    Ok(ExitStatus::Success)
}

fn open<T: BuildTask>(recipe: &Recipe, question: &EvalQuestion) -> Result<Opening> {
    let checkpoint = find_checkpoint(&question.checkpoint)?;
    let Surveyed { facts: survey, lists } = Surveyed::of::<T>(recipe)?;
    Ok(Opening { checkpoint, survey, lists })
}

/// Returns the newest intact checkpoint if `named` is a run directory, otherwise the checkpoint `named`.
pub(super) fn find_checkpoint(named: &Path) -> Result<PathBuf> {
    let run_dir = RunDir::new(named);
    if run_dir.checkpoints().is_dir()
        && let Some(newest) = checkpoint::choose(&run_dir, &Resume::Auto)?
    {
        return Ok(newest);
    }
    let folder = follow(named);
    checkpoint::verify(&folder).map_err(|error| WorkerError::Evaluate(error.into()))?;
    Ok(folder)
}

/// Builds the model, fills it from the checkpoint, and evaluates the whole test set and the other test sets; calls `tested` after
/// each. `shows`: whether records have samples, as the recipe says. Returns None if a rank was asked to stop. Every rank calls this.
fn evaluate<T: BuildTask + 'static>(
    of: &Evaluation<'_>,
    followers: &mut Followers<'_>,
    shows: bool,
    tested: &mut dyn FnMut(&TestRecord) -> Result<()>,
) -> Result<Option<Vec<TestRecord>>> {
    let mut begun = Instant::now();
    let Evaluation { recipe, device, .. } = *of;
    let limits = Limits::new(device, recipe.memory.budget);
    let survey = serde_json::from_value(of.survey.clone())?;
    let filled = fill::<T>(of, survey, |manifest, task| {
        check_same_data(&of.folder, manifest, task)?;
        if let (0, Some(warning)) = (of.env.rank, unnamed_classes(&of.folder, manifest, task)) {
            tracing::warn!("{warning}");
        }
        Ok(())
    })?;
    let Filled { task, manifest, is_average } = filled;
    let precision = Precision::new(&recipe.precision, device)?;
    if let Some(kernels) = Kernels::new(recipe, device)? {
        kernels.apply().map_err(TrainError::from)?;
    }
    let show = if shows { Show::of(recipe, task.facts(), of.env.rank) } else { Show::default() };
    let mut evaluator = Evaluator {
        task: &task,
        set: task.facts().watched(),
        figures: None,
        ranks: of.ranks,
        precision: &precision,
        loader: loader_options(recipe, of.env.local_world_size),
        limits,
        stop: of.stop,
        step_samples: recipe.of_stage(recipe.stage.len().saturating_sub(1)).train.effective_batch,
        show: &show,
    };
    // BatchNorm groups apply to training only.
    let limit = recipe.memory.micro_batch.value();
    let cut = Partition::new(recipe.train.effective_batch, of.ranks.size(), limit);
    let usual = || cut.map_or(1, |cut| cut.micro_batch());
    let mut batch = of.batch.or(recipe.evaluate.batch.value()).unwrap_or_else(usual);
    // An epoch that has begun counts.
    let epoch = manifest.epoch + u64::from(manifest.step_in_epoch > 0);
    let (step, mut fault) = (manifest.step, Fault::from_env(of.env.rank)?);
    let mut records = Vec::new();
    for set in task.facts().tests() {
        evaluator.set = set.first(of.samples);
        // The number of a sample names another one in each set.
        let warned = &mut Warned::default();
        let mut eval = match evaluator.run(batch, step, epoch, &mut fault, warned, followers)? {
            Evaluated::Whole(record, fitting) => {
                batch = fitting;
                *record
            }
            Evaluated::Stopped => return Ok(None),
            Evaluated::Exhausted(shortages, least) => {
                return Err(limits.exhausted_error(&shortages, least, step, Owners::default()).into());
            }
        };
        // That of the first set includes the time to build the model.
        eval.eval_ms = begun.elapsed().as_secs_f64() * 1e3;
        begun = Instant::now();
        let checkpoint = of.folder.display().to_string();
        let weights = if is_average { "average" } else { "raw" };
        let record = TestRecord { checkpoint, weights, batch, eval };
        tested(&record)?;
        records.push(record);
    }
    Ok(Some(records))
}

/// A task whose model has a checkpoint's weights.
pub(super) struct Filled<T> {
    pub(super) task: T,
    manifest: Manifest,
    /// Whether they are the moving average.
    pub(super) is_average: bool,
}

/// Builds a task whose model a checkpoint fills next.
pub(super) fn build_empty<T: BuildTask>(
    recipe: &Recipe,
    survey: T::Survey,
    device: Device,
    local_ranks: usize,
) -> Result<(T, Registry)> {
    let mut registry = registry(recipe, device)?;
    let cache = CacheBudget::new(cache_bytes(recipe.data.cache, local_ranks));
    let context = BuildContext { registry: &mut registry, local_ranks, cache };
    let task: T = build_to_fill(recipe, survey, context)?;
    base::settle(recipe, &mut registry)?;
    Ok((task, registry))
}

/// Builds the task of `survey`, and fills its model if it fits the manifest.
pub(super) fn fill<T: BuildTask + 'static>(
    of: &Evaluation<'_>,
    survey: T::Survey,
    fits: impl FnOnce(&Manifest, &T) -> Result<()>,
) -> Result<Filled<T>> {
    let Evaluation { recipe, ref folder, weights, .. } = *of;
    let building = progress::Progress::of_rank(of.env.rank, "building the model");
    let (mut task, registry) = build_empty::<T>(recipe, survey, of.device, of.env.local_world_size)?;
    drop(building);
    let reads = of.is_shared || of.env.rank == 0;
    let read = || Manifest::read(folder).map_err(|error| WorkerError::Evaluate(error.into()));
    let manifest = match reads.then(read).transpose()? {
        Some(manifest) if of.is_shared => manifest,
        own => send_manifest(own.as_ref(), of.ranks)?,
    };
    fits(&manifest, &task)?;
    // The loss is that of the stage which the checkpoint is of.
    let stage = recipe.stage.iter().position(|stage| manifest.stage.as_ref() == Some(&stage.name));
    if let Some(number) = stage {
        begin_stage(&mut task, recipe, number).map_err(TrainError::from)?;
    }
    if registry.has_base() {
        weights::load(recipe, &registry, task.facts().lacks_weights)?;
        if of.env.rank == 0 {
            base::check_same(folder, manifest.base.as_ref(), base::describe(&registry)?.as_ref())?;
        }
    }
    let wants_average = weights != EvalWeights::Raw;
    let is_average = match reads {
        true => checkpoint::restore_weights(folder, &manifest, &registry, wants_average)
            .map_err(WorkerError::Evaluate)?,
        false => wants_average && manifest.ema_updates.is_some(),
    };
    if !of.is_shared {
        checkpoint::send_model(&registry, of.ranks).map_err(WorkerError::Evaluate)?;
    }
    if weights == EvalWeights::Average && !is_average {
        return Err(WorkerError::NoAverage { folder: folder.clone() });
    }
    Ok(Filled { task, manifest, is_average })
}

/// Tests the model at the end of a run, after the training's memory was freed. Rank 0 appends the result to
/// the metrics. Returns a record for the test set and for each other set; None if a rank was asked to stop. Every rank calls this.
pub(crate) fn test<T: BuildTask + 'static>(
    of: &Evaluation<'_>,
    run_dir: &RunDir,
    style: ProgressStyle,
    telemetry: &TelemetryHandle,
) -> Result<Option<Vec<TestRecord>>> {
    Limits::new(of.device, of.recipe.memory.budget).empty_cache();
    let free = memory::report(of.device).map_err(TrainError::from)?;
    let mut followers = followers_of(style);
    let (path, on_failure) = (run_dir.metrics(), of.recipe.checkpoint.on_failure);
    let settled = |written: io::Result<()>| match written {
        // The training is complete, and result.json has the figures too.
        Err(source) if on_failure == OnFailure::Continue => {
            let error = WorkerError::Write { path: path.clone(), source };
            tracing::warn!("{error}; on_failure = \"continue\"");
            Ok(())
        }
        written => written.map_err(|source| WorkerError::Write { path: path.clone(), source }),
    };
    let mut log = None;
    if of.env.rank == 0 {
        let opened = MetricsLog::open(&path, u64::MAX, false);
        settled(opened.map(|opened| log = Some(opened.on_failure(on_failure))))?;
    }
    let (by_class, mut samples) = (ByClass::of(run_dir, on_failure), SampleFolders::new(run_dir));
    // A failure in a later set keeps the results of those before it.
    let mut append = |record: &TestRecord| match &mut log {
        Some(log) => {
            settled(log.append(&Line::Test(record)))?;
            samples.write(&record.eval);
            telemetry.0.borrow_mut().record(&Line::Test(record));
            by_class.write(&record.eval).map_err(|(path, source)| WorkerError::Write { path, source })
        }
        None => Ok(()),
    };
    let Some(records) = evaluate::<T>(of, &mut followers, true, &mut append)? else { return Ok(None) };
    if of.env.rank == 0 {
        let peak = memory::report(of.device).map_err(TrainError::from)?.peak;
        records
            .iter()
            .for_each(|record| followers.note(format_args!("test of {}", format_result(record, &[peak]))));
        followers.note(format_args!(
            "  memory: {} after the training was freed, {} at the peak",
            ByteSize(free.allocated),
            ByteSize(peak)
        ));
    }
    Ok(Some(records))
}

fn print_result(record: &TestRecord, peaks: &[u64], json: bool) -> Result<()> {
    let mut text = format_result(record, peaks);
    if json {
        let mut value = serde_json::to_value(record)?;
        value["peak_memory_bytes"] = serde_json::json!(peaks);
        if !record.eval.by_class.is_empty() {
            value["by_class"] = serde_json::to_value(&record.eval.by_class)?;
        }
        text = value.to_string();
    }
    // A closed pipe is not an error.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
    Ok(())
}

fn format_result(record: &TestRecord, peaks: &[u64]) -> String {
    let TestRecord { checkpoint, weights, batch, eval } = record;
    let average = if *weights == "average" { ", moving average" } else { "" };
    let unreadable = match eval.unreadable {
        0 => String::new(),
        unreadable => format!(", without {unreadable} unreadable"),
    };
    let mut lines = vec![
        format!("{checkpoint}: after step {} (epoch {}){average}", eval.step, eval.epoch),
        format!("  {:<16}{}", "samples", eval.samples) + &unreadable,
        format!("  {:<16}{:.4}", format!("{} loss", eval.set.as_deref().unwrap_or(TEST)), eval.loss),
    ];
    // A long name moves the column.
    let figures = figures(eval);
    let width = figures.iter().map(|(name, _)| name.len() + 2).fold(16, usize::max);
    lines.extend(figures.iter().map(|(name, value)| format!("  {name:<width$}{value}")));
    lines.extend(by_class::tables(&eval.by_class));
    let peak = ByteSize(peaks.iter().copied().max().unwrap_or(0));
    lines.push(format!("  {:.1} s, batches of {batch} per rank, peak memory {peak}", eval.eval_ms / 1e3));
    lines.join("\n")
}
