//! Runs a worker: connects to its peers, builds the model, trains, and writes the result.

mod by_class;
mod describe;
mod environment;
mod evaluation;
mod followers;
mod join;
mod lead;
mod prediction;
mod process;
mod questions;
mod rollback;
mod telemetry;
mod training;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dtrain_common::agent_lease;
use dtrain_common::env::{DTRAIN_START_UNIX_NS, WorkerEnv};
use dtrain_common::exit::ExitStatus;
use dtrain_common::manifest::{self, Manifest};
use dtrain_common::recipe::Source;
use dtrain_common::recipe::kinds::Key;
use dtrain_common::result::{Figures, RunResult};
use dtrain_common::run_dir::{Resume, RunDir, RunDirError};
use dtrain_recipe::{Recipe, TestWeights};
use dtrain_telemetry::Outcome;

use self::describe::describe_run;
use self::environment::FileHashes;
use self::evaluation::Evaluation;
use self::followers::{Following, followers};
use self::join::{Joined, join_run};
use self::lead::Prepared;
pub use self::process::{main_by_recipe, program, program_by_recipe};
use self::training::{share_state, training};
use crate::checkpoint::Gathering;
use crate::faults::Fault;
use crate::heartbeat::Heartbeat;
use crate::planning::{EvalWeights, start};
use crate::request::Request;
use crate::run::followers::ResumeOrigin;
use crate::run::{TrainError, figures_of, peak_memory, run as run_training};
use crate::setup::error::{Result, WorkerError};
use crate::setup::host::Host;
use crate::setup::room;
use crate::step::recover::catch_torch_panic;
use crate::tasks::{self, BuildTask, WithTask};

/// Trains as `request` and the environment contract define. Returns the exit status of a run that ended in
/// order. Every rank calls this once, on its main thread, before other threads use libtorch.
pub fn run(request: &Request, env: &WorkerEnv) -> Result<ExitStatus> {
    with_recipe(request, None, |recipe| {
        let started = tasks::with_task(recipe.task, Start { recipe, request, env });
        started.ok_or(WorkerError::NoTask(recipe.task))?
    })
}

/// A start of any task.
struct Start<'a> {
    recipe: &'a Recipe,
    request: &'a Request,
    env: &'a WorkerEnv,
}

impl WithTask for Start<'_> {
    type Output = Result<ExitStatus>;

    fn run<T: BuildTask + 'static>(self) -> Self::Output {
        answer_or_train::<T>(self.recipe, self.request, self.env)
    }
}

/// Works like [`run`] for the task `T`, whatever task the recipe names: the entry point of custom trainers.
pub fn run_task<T: BuildTask + 'static>(request: &Request, env: &WorkerEnv) -> Result<ExitStatus> {
    with_recipe(request, T::SETTINGS, |recipe| answer_or_train::<T>(recipe, request, env))
}

/// Answers the request's question if it needs no recipe, else `start` with the recipe, whose `[custom]` takes these keys.
fn with_recipe(
    request: &Request,
    custom: Option<&'static [Key]>,
    start: impl FnOnce(&Recipe) -> Result<ExitStatus>,
) -> Result<ExitStatus> {
    match request.job.as_deref().and_then(|question| questions::run_without_recipe(question, custom)) {
        Some(status) => status,
        None => start(&Recipe::with_custom(&source(request)?, &request.overrides, custom)?),
    }
}

/// Finds the recipe. A question may be about that of a checkpoint, by its folder.
fn source(request: &Request) -> Result<Source> {
    let folder = Path::new(&request.recipe);
    match request.job.is_some() && folder.join(manifest::FILE_NAME).is_file() {
        true => Ok(Manifest::read(folder).map_err(RunDirError::from)?.recipe_source(folder)?),
        false => Ok(Source::find(&request.recipe)?),
    }
}

/// Turns a panic caused by out of memory into an error, where no step can be retried.
fn answer_or_train<T: BuildTask + 'static>(
    recipe: &Recipe,
    request: &Request,
    env: &WorkerEnv,
) -> Result<ExitStatus> {
    catch_torch_panic(|| match &request.job {
        Some(question) => questions::run::<T>(recipe, request, env, question),
        None => train::<T>(recipe, request, env),
    })?
}

fn train<T: BuildTask + 'static>(recipe: &Recipe, request: &Request, env: &WorkerEnv) -> Result<ExitStatus> {
    let began = Instant::now();
    let hashes = FileHashes::begin(recipe, env);
    let mut host = Host::enter(recipe, env)?;
    let fault = Fault::from_env(env.rank)?;
    let joined = join_run::<T>(request, recipe, env, &host)?;
    let Joined { run: Prepared { opening, mut setup, claims: _claims }, ranks, agreed } = joined;
    let is_shared = matches!(agreed.gathering, Gathering::Shared);
    host.stop.handle_signals().map_err(WorkerError::Signals)?;
    let inputs = start::PlanInputs::of_rank(request, &opening.survey, recipe, env, &host);
    start::with_smallest_step::<T, _, _>(&inputs, recipe, || share_state(&ranks, &mut setup))?;
    room::leave(recipe, env, &mut host, &setup, &ranks, &agreed)?;
    let chosen = start::choose_cuts::<T>(&ranks, &mut setup, &inputs, recipe, &host)?;
    let run_dir = RunDir::new(&opening.run_dir);
    let manifest = setup.resumed.as_ref().map(|resumed| &resumed.manifest);
    let origin = ResumeOrigin {
        run_dir: &run_dir,
        from_memory: opening.copies.is_some(),
        is_foreign: opening.is_foreign,
        evaluation_missing: manifest.is_some_and(|manifest| manifest.evaluation_missing),
    };
    let Following { mut followers, telemetry } =
        followers(recipe, agreed, &setup, env, &host, &ranks, origin)?;
    let environment = environment::of_run(recipe, env, &host, &ranks, &setup, hashes)?;
    if env.rank == 0 {
        describe_run(recipe, &setup, &environment, &host, &chosen, &run_dir, &mut followers)?;
    }
    let resumed_in = setup.resumed.as_ref().map(|resumed| resumed.took);
    let training = training(recipe, setup, ranks.clone(), env, host.device, fault)?;
    // The training's memory is freed on return, and the followers' by the next line.
    let (is_finished, mut result) = run_training(training, &mut followers, launch_time())?;
    drop(followers);
    let mut status = if is_finished { ExitStatus::Success } else { ExitStatus::Requeue };
    let peak = result.peak_memory_bytes.first().copied().unwrap_or_default();
    result.peak_memory_bytes = peak_memory(&ranks, peak)?;
    if let (Some(test), ExitStatus::Success) = (recipe.test, status) {
        let best = result.best.as_ref().filter(|_| test.weights == TestWeights::Best);
        let step = best.map(|best| best.step).or(result.steps).unwrap_or_default();
        let evaluation = Evaluation {
            recipe,
            survey: &opening.survey,
            folder: run_dir.checkpoint(step),
            is_shared,
            weights: EvalWeights::Auto,
            batch: None,
            samples: test.samples,
            env,
            ranks: &ranks,
            device: host.device,
            stop: &host.stop,
        };
        match evaluation::test::<T>(&evaluation, &run_dir, host.style, &telemetry)? {
            Some(records) => {
                for eval in records.iter().map(|record| &record.eval) {
                    match &eval.set {
                        None => result.test = figures_of(eval),
                        Some(name) => drop(result.tests.insert(name.clone(), Figures(figures_of(eval)))),
                    }
                }
            }
            None => status = ExitStatus::Requeue,
        }
    }
    ranks.shutdown().map_err(TrainError::from)?;
    result.resume_ms = resumed_in.map(|took| 1e3 * took.as_secs_f64());
    if env.rank == 0 {
        write_result(result, status, request, env, &run_dir, began.elapsed())?;
        // Other programs have some seconds to end. The other ranks do not wait for them, and this wait is no hang.
        let _waiting = Heartbeat::from_env().guard_write();
        let outcome = if status == ExitStatus::Success { Outcome::Complete } else { Outcome::Stopped };
        telemetry.0.take().finish(outcome);
    }
    Ok(status)
}

/// Returns the time of the launch command, if the launcher provides it.
fn launch_time() -> Option<SystemTime> {
    let nanos = std::env::var(DTRAIN_START_UNIX_NS).ok()?.parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_nanos(nanos))
}

/// Writes result.json, to which a launcher adds its fields.
fn write_result(
    result: RunResult,
    status: ExitStatus,
    request: &Request,
    env: &WorkerEnv,
    run_dir: &RunDir,
    wall: Duration,
) -> Result<()> {
    let result = RunResult {
        exit_code: Some(status.code()),
        reason: Some(status.describe()),
        wall_s: Some(wall.as_secs_f64()),
        nproc: Some(env.world_size),
        resumed_from: match &request.resume {
            Resume::From(checkpoint) => Some(checkpoint.clone()),
            _ => result.resumed_from,
        },
        ..result
    };
    agent_lease::check()?;
    let path = run_dir.result();
    result.write(&path).map_err(|source| WorkerError::Write { path, source })?;
    // A launcher does this itself, after all workers have exited.
    if status == ExitStatus::Success && !request.prepared {
        run_dir.record_end()?;
    }
    Ok(())
}
