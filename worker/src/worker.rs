//! A worker's life: find the peers, set up, train, say how it ended.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::plan::{Cut, EvalWeights};
use dtrain_common::env::{DTRAIN_START_UNIX_NS, WorkerEnv};
use dtrain_common::exit::ExitStatus;
use dtrain_common::recipe::{self, Recipe, Task, TestWeights};
use dtrain_common::run_dir::{Resume, RunDir};
use tch::{Device, Tensor};

use super::device;
use super::error::WorkerError;
use super::setup::{Opening, Setup, loader_options, share_of_cores};
use crate::collectives::{Collective, Ranks, Rendezvous};
use crate::control::Control;
use crate::engine::{
    BestKeeper, Fault, Outcome, Parts, SaveMore, StopFlag, Summary, TrainError, Trainer, prepare_graphs,
    shielded,
};
use crate::evaluation::{self, Subject};
use crate::heartbeat::Heartbeat;
use crate::introduce::introduce;
use crate::job;
use crate::lead::{lead, memory_copies};
use crate::memory::budget;
use crate::memory::start;
use crate::metrics::{Progress, Surface};
use crate::models::Recompute;
use crate::tasks::{BuildTask, Classify, Lm, Segment, TorchScript};

/// What a worker is asked to do.
#[derive(Debug, Clone)]
pub struct Request {
    /// A recipe's path or the name of an embedded one.
    pub recipe: String,
    /// Values that override the recipe's, as `key=value`.
    pub overrides: Vec<String>,
    /// Where the run writes; by default a new folder under `runs/`.
    pub run_dir: Option<PathBuf>,
    /// Where the run begins.
    pub resume: Resume,
    /// The launcher has prepared the run directory and holds its lock.
    pub prepared: bool,
    /// What is asked for instead of a training, as JSON: see `crate::plan::Job`.
    pub job: Option<String>,
}

/// Trains as `request` and the environment contract say, and returns the exit status of a run that ended in good order.
/// Every rank of the run calls it once, on its main thread, before other threads use libtorch.
///
/// # Errors
/// See [`WorkerError`]; its exit status is [`WorkerError::exit_status`].
pub fn run(request: &Request, env: &WorkerEnv) -> Result<ExitStatus, WorkerError> {
    let recipe = Recipe::load(&request.recipe, &request.overrides)?;
    match recipe.task {
        Task::Classify => begin::<Classify>(&recipe, request, env),
        Task::Segment => begin::<Segment>(&recipe, request, env),
        Task::Lm => begin::<Lm>(&recipe, request, env),
        Task::Torchscript => begin::<TorchScript>(&recipe, request, env),
        other @ Task::Custom => Err(WorkerError::NoTask(other)),
    }
}

/// As [`run`], for the task `T` whatever the recipe's task is called: the way of a user's own trainer.
///
/// # Errors
/// As [`run`].
pub fn run_task<T: BuildTask + 'static>(
    request: &Request,
    env: &WorkerEnv,
) -> Result<ExitStatus, WorkerError> {
    let recipe = Recipe::load(&request.recipe, &request.overrides)?;
    begin::<T>(&recipe, request, env)
}

fn begin<T: BuildTask + 'static>(
    recipe: &Recipe,
    request: &Request,
    env: &WorkerEnv,
) -> Result<ExitStatus, WorkerError> {
    match &request.job {
        Some(job) => job::run::<T>(recipe, request, env, job),
        None => train::<T>(recipe, request, env),
    }
}

/// A worker that runs out of memory where nothing can be taken again ends with an error that says so, in whatever way it is told.
fn train<T: BuildTask + 'static>(
    recipe: &Recipe,
    request: &Request,
    env: &WorkerEnv,
) -> Result<ExitStatus, WorkerError> {
    shielded(|| train_shielded::<T>(recipe, request, env))?
}

fn train_shielded<T: BuildTask + 'static>(
    recipe: &Recipe,
    request: &Request,
    env: &WorkerEnv,
) -> Result<ExitStatus, WorkerError> {
    let began = Instant::now();
    let stop = StopFlag::listen().map_err(WorkerError::Signals)?;
    let surface = Surface::detect(env.rank);
    let device = device::choose(env, recipe.memory.budget.size())?;
    prepare_graphs(recipe.model.compile, device).map_err(TrainError::from)?;
    let allowed =
        budget::bytes(recipe.memory.budget, device, env.local_world_size).map_err(TrainError::from)?;
    budget::enforce(allowed, device);
    let _control = Control::listen(env.rank, device);
    if let Err(error) = dtrain_torch_shim::keep_freed_memory() {
        tracing::debug!("{error}");
    }
    let fault = Fault::from_env(env.rank)?;

    // Rank 0 decides how the run begins, or refuses it; the others follow.
    let rendezvous = Rendezvous::open(env.clone())?;
    let (opening, mut setup, _claims) = if env.rank == 0 {
        let (opening, setup, claims) = lead::<T>(request, recipe, env, device, allowed)
            .inspect_err(|error| rendezvous.refuse(&error.to_string()))?;
        rendezvous.announce(&serde_json::to_vec(&opening)?)?;
        (opening, setup, claims)
    } else {
        let opening: Opening = serde_json::from_slice(&rendezvous.opening()?)?;
        let setup = Setup::build::<T>(recipe, &opening, env, device, None)?;
        (opening, setup, Vec::new())
    };
    let ranks = Ranks::new(rendezvous.connect(device)?);
    if let Some(sync) = &setup.batch_sync {
        sync.connect(rendezvous.connect_beside("batch-norm", &ranks)?);
    }
    stop.be_patient().map_err(WorkerError::Signals)?;
    let run_dir = RunDir::new(&opening.run_dir);

    let model = &mut setup.model;
    model.share(&ranks)?;
    same_start(&ranks, model.table.data())?;

    let limit = start::agree(&ranks, allowed)?;
    let chosen = match env.rank {
        0 => start::choose::<T>(
            request,
            recipe,
            &opening.survey,
            env.world_size,
            (limit, device),
            setup.precision.amp(),
        )?,
        _ => Vec::new(),
    };
    let stages = setup.plan.stages().len();
    for (stage, cut) in start::tell(&ranks, stages, &chosen)?.into_iter().enumerate() {
        let Some((micro_batch, segments)) = cut else {
            continue;
        };
        setup.plan.set_recompute(stage, segments);
        if let Some(plan) = setup.plan.in_micro_batches(stage, micro_batch) {
            setup.plan = plan;
        }
    }
    if let Some(sync) = &setup.batch_sync {
        let first = &setup.plan.stages()[setup.place.stage];
        let cut = Cut {
            ranks: env.world_size,
            micro_batch: first.partition.micro_batch(),
            amp: setup.precision.amp(),
            recompute: first.recompute,
            shard_optimizer: recipe.memory.shard_optimizer,
        };
        start::foresee::<T>(sync, request, &opening.survey, setup.place.stage, cut, device)?;
    }
    let recompute = setup.model.recompute.clone();

    let progress = Progress::new(
        surface,
        setup.plan.total_steps,
        setup.plan.epochs(),
        recipe.log.every_steps,
        setup.done,
    );
    let metrics = match env.rank {
        0 => Some(introduce(
            recipe,
            &setup,
            env,
            &run_dir,
            device,
            &progress,
            (&chosen, limit),
        )?),
        _ => None,
    };
    let resumed_in = setup.resumed_in;
    let heartbeat = Heartbeat::from_env();
    let copies = memory_copies(recipe, env);
    let trainer = Trainer::new(Parts {
        recipe,
        run_dir: &run_dir,
        ranks: ranks.clone(),
        model: setup.model,
        reduce: (&recipe.reduce).into(),
        precision: setup.precision,
        plan: setup.plan,
        stages: setup.stages,
        place: setup.place,
        loader_options: loader_options(recipe, env.local_world_size),
        device,
        stop: stop.clone(),
        done: setup.done,
        earlier_metrics: setup.earlier_metrics,
        cores: share_of_cores(env.local_world_size),
        data: setup.data,
        best: BestKeeper::new(recipe.checkpoint.best.clone(), opening.best),
        owes_evaluation: setup.owes_evaluation,
        metrics,
        progress,
        launched: launched(),
        memory_copies: copies.as_deref(),
        from_memory: opening.from_memory,
        is_anothers: opening.is_anothers,
        heartbeat: Heartbeat::from_env(),
        batch_sync: setup.batch_sync,
        save_more: save_more(recipe, &recompute),
        fault,
    })?;
    // What the training took is free when it returns.
    let (mut summary, mut status) = match trainer.run()? {
        Outcome::Finished(summary) => (summary, ExitStatus::Success),
        Outcome::Stopped(summary) => (summary, ExitStatus::Requeue),
    };
    let peaks = peak_memory(&ranks, summary.peak)?;
    if let (Some(test), ExitStatus::Success) = (recipe.test, status) {
        let step = match test.weights {
            TestWeights::Best => summary.result.best.as_ref().map(|best| best.step),
            TestWeights::Last => None,
        };
        let subject = Subject {
            recipe,
            survey: &opening.survey,
            folder: &run_dir.checkpoint(step.or(summary.result.steps).unwrap_or_default()),
            weights: EvalWeights::Auto,
            batch: None,
        };
        let place = evaluation::Place {
            env,
            ranks: &ranks,
            device,
            stop: &stop,
            heartbeat: &heartbeat,
            progress: &Progress::new(surface, 0, 0, 1, 0),
        };
        match evaluation::test::<T>(&subject, &place, (env.rank == 0).then_some(&run_dir))? {
            Some(figures) => summary.result.test = figures,
            None => status = ExitStatus::Requeue,
        }
    }
    ranks.shutdown().map_err(TrainError::from)?;
    if env.rank == 0 {
        summary.result.peak_memory_bytes = peaks;
        if let Resume::From(checkpoint) = &request.resume {
            summary.result.resumed_from = Some(checkpoint.clone());
        }
        summary.result.resume_ms = resumed_in.map(|took| 1e3 * took.as_secs_f64());
        conclude(&summary, status, env, &run_dir, began.elapsed())?;
        // A launcher waits for the ends of all workers first.
        if status == ExitStatus::Success && !request.prepared {
            run_dir.note_ended()?;
        }
    }
    Ok(status)
}

/// When memory is short at the smallest micro-batch: all segments, unless the recipe forbids it.
fn save_more(recipe: &Recipe, recompute: &Recompute) -> SaveMore {
    let allowed = recipe.memory.recompute != recipe::Recompute::Off;
    let recompute = recompute.clone();
    Box::new(move || {
        let more = allowed && recompute.count() < recompute.segments();
        if more {
            recompute.all();
        }
        more
    })
}

/// Sends rank 0's parameters and buffers to all: whatever the ranks read or drew, they begin alike.
fn same_start<'a>(ranks: &Ranks, state: impl Iterator<Item = &'a Tensor>) -> Result<(), TrainError> {
    let all: Vec<_> = state.map(|tensor| Collective::Broadcast(tensor, 0)).collect();
    ranks.start_all(&all)?.wait()?;
    Ok(())
}

/// The greatest memory of every rank in bytes, by rank.
pub(crate) fn peak_memory(ranks: &Ranks, own: u64) -> Result<Vec<u64>, TrainError> {
    let own = own as i64;
    let all = Tensor::f_zeros([ranks.size() as i64], (tch::Kind::Int64, Device::Cpu))?;
    ranks.all_gather(&all, &Tensor::f_from_slice(&[own])?)?.wait()?;
    Ok(Vec::<i64>::try_from(&all)?
        .into_iter()
        .map(|bytes| bytes as u64)
        .collect())
}

/// When the launch command was given, where the launcher says so.
fn launched() -> Option<SystemTime> {
    let nanos = std::env::var(DTRAIN_START_UNIX_NS).ok()?.parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_nanos(nanos))
}

/// Writes result.json; a launcher adds its own view of the outcome to it.
fn conclude(
    summary: &Summary,
    status: ExitStatus,
    env: &WorkerEnv,
    run_dir: &RunDir,
    wall: Duration,
) -> Result<(), WorkerError> {
    let mut result = summary.result.clone();
    result.exit_code = Some(status.code());
    result.reason = Some(status.describe());
    result.wall_s = Some(wall.as_secs_f64());
    result.nproc = Some(env.world_size);
    let path = run_dir.result();
    result
        .write(&path)
        .map_err(|source| WorkerError::Write { path, source })
}
