//! A checkpoint's model without its training: `dtrain eval`, and the test at the end of a run.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::memory_report::Owners;
use crate::plan::{EvalJob, EvalWeights};
use dtrain_common::batch::Partition;
use dtrain_common::env::WorkerEnv;
use dtrain_common::exit::ExitStatus;
use dtrain_common::manifest::Manifest;
use dtrain_common::recipe::Recipe;
use dtrain_common::run_dir::{Resume, RunDir};
use dtrain_common::units::ByteSize;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Device;

use crate::TrainError;
use crate::checkpoint;
use crate::collectives::{Ranks, Rendezvous};
use crate::data_mark::{same_data, unnamed_classes};
use crate::device;
use crate::error::{Result, WorkerError};
use crate::heartbeat::Heartbeat;
use crate::memory::{self, budget};
use crate::metrics::{Line, MetricsLog, Progress, Surface, TestRecord, figure};
use crate::run::evaluate::{Evaluated, Evaluator};
use crate::run::followers::{Followers, figures_of};
use crate::run::{StopFlag, peak_memory};
use crate::setup::{loader_options, registry};
use crate::step::recover::Limits;
use crate::step::{Fault, Kernels, Precision};
use crate::tasks::{BuildTask, Console, Site, build_to_fill};

/// What rank 0 tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Opening {
    checkpoint: PathBuf,
    survey: Value,
}

/// Which model is evaluated.
struct Subject<'a> {
    recipe: &'a Recipe,
    survey: &'a Value,
    /// The checkpoint, which rank 0 has verified or written.
    folder: &'a Path,
    weights: EvalWeights,
    /// Samples of a batch; without it what the recipe's training takes.
    batch: Option<usize>,
}

pub(crate) struct Place<'a> {
    pub(crate) env: &'a WorkerEnv,
    pub(crate) ranks: &'a Ranks,
    pub(crate) device: Device,
    pub(crate) stop: &'a StopFlag,
}

/// Who hears of it.
fn audience(surface: Surface) -> Followers<'static> {
    Followers::new(vec![Box::new(Heartbeat::from_env()), Box::new(Progress::new(surface, 0, 0, 1, 0))])
}

/// Does the job of `dtrain eval`; the answer goes to standard output. Every rank calls it.
pub(crate) fn run<T: BuildTask + 'static>(
    recipe: &Recipe,
    env: &WorkerEnv,
    job: &EvalJob,
) -> Result<ExitStatus> {
    let device = device::choose(env, recipe.memory.budget.stated().map(|size| size.0))?;
    let allowed =
        budget::bytes(recipe.memory.budget, device, env.local_world_size).map_err(TrainError::from)?;
    budget::enforce(allowed, device);
    let rendezvous = Rendezvous::open(env.clone())?;
    let opening = if env.rank == 0 {
        let opening = lead::<T>(recipe, job).inspect_err(|error| rendezvous.refuse(&error.to_string()))?;
        rendezvous.announce(&serde_json::to_vec(&opening)?)?;
        opening
    } else {
        serde_json::from_slice(&rendezvous.opening()?)?
    };
    let ranks = Ranks::new(rendezvous.connect(device)?);
    let subject = Subject {
        recipe,
        survey: &opening.survey,
        folder: &opening.checkpoint,
        weights: job.weights,
        batch: job.batch,
    };
    let place = Place {
        env,
        ranks: &ranks,
        device,
        // Nothing is lost with an evaluation: signals end it at once.
        stop: &StopFlag::default(),
    };
    let record = evaluate::<T>(&subject, &place, &mut audience(Surface::detect(env.rank)))?;
    let peaks = peak_memory(&ranks, memory::report(device).map_err(TrainError::from)?.peak)?;
    ranks.shutdown().map_err(TrainError::from)?;
    if let (0, Some(record)) = (env.rank, record) {
        answer(&record, &peaks, job.json)?;
    }
    Ok(ExitStatus::Success)
}

fn lead<T: BuildTask>(recipe: &Recipe, job: &EvalJob) -> Result<Opening> {
    let checkpoint = choose(&job.checkpoint)?;
    let survey = serde_json::to_value(Console::with_log(|console| T::survey(recipe, console))?)?;
    Ok(Opening { checkpoint, survey })
}

/// The checkpoint itself, or the newest whole one of a run.
fn choose(named: &Path) -> Result<PathBuf> {
    let run_dir = RunDir::new(named);
    if run_dir.checkpoints().is_dir()
        && let Some(newest) = checkpoint::choose(&run_dir, &Resume::Auto)?
    {
        return Ok(newest);
    }
    checkpoint::verify(named).map_err(|error| WorkerError::Evaluate(error.into()))?;
    Ok(named.to_owned())
}

/// Builds the model, fills it from the checkpoint, and evaluates the whole test set. None where some rank was asked to stop. Every rank
/// calls it.
fn evaluate<T: BuildTask + 'static>(
    subject: &Subject<'_>,
    place: &Place<'_>,
    followers: &mut Followers<'_>,
) -> Result<Option<TestRecord>> {
    let begun = Instant::now();
    let Subject { recipe, folder, .. } = *subject;
    let limits = Limits::new(place.device, recipe.memory.budget);
    let (task, manifest, average) = fill::<T>(subject, place)?;
    let precision = Precision::new(&recipe.precision, place.device)?;
    if let Some(kernels) = Kernels::new(recipe, place.device)? {
        kernels.apply().map_err(TrainError::from)?;
    }
    let evaluator = Evaluator {
        task: &task,
        ranks: place.ranks,
        precision: &precision,
        loader: loader_options(recipe, place.env.local_world_size),
        limits,
        stop: place.stop,
    };
    // Groups of batch normalisations are the training's.
    let limit = recipe.memory.micro_batch.stated();
    let cut = Partition::new(recipe.train.effective_batch, place.ranks.size(), limit);
    let usual = || cut.map_or(1, |cut| cut.micro_batch());
    let batch = subject.batch.unwrap_or_else(usual);
    // Steps of an epoch that were taken belong to it.
    let epoch = manifest.epoch + u64::from(manifest.step_in_epoch > 0);
    let (step, mut fault) = (manifest.step, Fault::from_env(place.env.rank)?);
    let (mut eval, batch) = match evaluator.run(batch, (step, epoch), &mut fault, followers)? {
        Evaluated::Whole(record, batch) => (*record, batch),
        Evaluated::Stopped => return Ok(None),
        Evaluated::Exhausted(shortages) => {
            return Err(limits.exhausted(&shortages, 1, step, Owners::default()).into());
        }
    };
    // With the time that the model took to be built.
    eval.eval_ms = begun.elapsed().as_secs_f64() * 1e3;
    Ok(Some(TestRecord {
        checkpoint: folder.display().to_string(),
        weights: if average { "average" } else { "raw" },
        batch,
        eval,
    }))
}

/// The task with its model, filled from the checkpoint, whose manifest goes with it; and whether its weights are the moving average.
fn fill<T: BuildTask + 'static>(subject: &Subject<'_>, place: &Place<'_>) -> Result<(T, Manifest, bool)> {
    let Subject { recipe, folder, .. } = *subject;
    let mut registry = registry(recipe, place.device);
    let site = Site { registry: &mut registry, local_ranks: place.env.local_world_size };
    let task: T = build_to_fill(recipe, serde_json::from_value(subject.survey.clone())?, site)?;
    let manifest = Manifest::read(folder).map_err(|error| WorkerError::Evaluate(error.into()))?;
    same_data(folder, &manifest, &task)?;
    if let (0, Some(warning)) = (place.env.rank, unnamed_classes(folder, &manifest, &task)) {
        tracing::warn!("{warning}");
    }
    let wants_average = subject.weights != EvalWeights::Raw;
    let average = checkpoint::restore_weights(folder, &manifest, &registry, wants_average)
        .map_err(WorkerError::Evaluate)?;
    if subject.weights == EvalWeights::Average && !average {
        let folder = folder.to_owned();
        return Err(WorkerError::NoAverage { folder });
    }
    Ok((task, manifest, average))
}

/// The test at the end of a run, of its checkpoint after `step`, with the memory of the training free. Rank 0 writes the result into the
/// run directory. Its figures by name; None where some rank was asked to stop. Every rank calls it.
pub(crate) fn test<T: BuildTask + 'static>(
    (recipe, survey, step): (&Recipe, &Value, u64),
    place: &Place<'_>,
    run_dir: &RunDir,
    surface: Surface,
) -> Result<Option<BTreeMap<String, f64>>> {
    let subject = Subject {
        recipe,
        survey,
        folder: &run_dir.checkpoint(step),
        weights: EvalWeights::Auto,
        batch: None,
    };
    // Neither failure would change what follows.
    let _ = dtrain_torch_shim::memory::empty_cache(place.device);
    let _ = dtrain_torch_shim::memory::reset_peak(place.device);
    let free = memory::report(place.device).map_err(TrainError::from)?;
    let mut followers = audience(surface);
    let Some(record) = evaluate::<T>(&subject, place, &mut followers)? else {
        return Ok(None);
    };
    if place.env.rank == 0 {
        let path = run_dir.metrics();
        MetricsLog::open(&path, u64::MAX)
            .and_then(|mut log| log.append(&Line::Test(&record)))
            .map_err(|source| WorkerError::Write { path, source })?;
        let peak = memory::report(place.device).map_err(TrainError::from)?.peak;
        followers.note(format_args!(
            "test of {}\n  memory: {} when the training's was free, {} at most",
            table(&record, &[peak]),
            ByteSize(free.allocated),
            ByteSize(peak)
        ));
    }
    Ok(Some(figures_of(&record.eval)))
}

fn answer(record: &TestRecord, peaks: &[u64], json: bool) -> Result<()> {
    let text = match json {
        true => {
            let mut value = serde_json::to_value(record)?;
            value["peak_memory_bytes"] = serde_json::json!(peaks);
            value.to_string()
        }
        false => table(record, peaks),
    };
    // A reader that has gone away is none to tell.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
    Ok(())
}

fn table(record: &TestRecord, peaks: &[u64]) -> String {
    let TestRecord { checkpoint, weights, batch, eval } = record;
    let average = if *weights == "average" { ", moving average" } else { "" };
    let mut lines = vec![
        format!("{checkpoint}: after step {} (epoch {}){average}", eval.step, eval.epoch),
        format!("  {:<16}{}", "samples", eval.samples),
        format!("  {:<16}{:.4}", "test loss", eval.loss),
    ];
    for (name, value) in &eval.metrics.0 {
        lines.push(format!("  {:<16}{}", name.replace('_', " "), figure(name, *value)));
    }
    let peak = ByteSize(peaks.iter().copied().max().unwrap_or(0));
    lines.push(format!(
        "  in {:.1} s, in batches of {batch} per rank, with {peak} of memory at most",
        eval.eval_ms / 1e3
    ));
    lines.join("\n")
}
