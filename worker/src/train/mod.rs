//! Runs a worker: connects to its peers, builds the model, trains, and writes the result.

mod describe;
mod evaluation;
mod lead;
mod process;
mod questions;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dtrain_common::agent_lease;
use dtrain_common::env::{DTRAIN_START_UNIX_NS, WorkerEnv};
use dtrain_common::exit::ExitStatus;
use dtrain_common::recipe::Source;
use dtrain_common::recipe::kinds::Key;
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::{Resume, RunDir};
use dtrain_recipe::{Recipe, TestWeights};
use tch::{Device, Kind, Tensor};

use self::describe::describe_run;
use self::evaluation::Evaluation;
use self::lead::{Prepared, prepare_run};
pub use self::process::{program, program_by_recipe};
use crate::checkpoint::{self, Checkpoints, Gathering, MemoryCopies};
use crate::collectives::{Collective, Ranks, Rendezvous};
use crate::data::packed::Packed;
use crate::faults::Fault;
use crate::heartbeat::Heartbeat;
use crate::memory::MemoryStats;
use crate::metrics::{MetricsLog, Progress};
use crate::planning::EvalWeights;
use crate::planning::start;
use crate::request::Request;
use crate::run::Follower;
use crate::run::TrainError;
use crate::run::followers::{Archive, Copies, Figures, Health, ResumeOrigin};
use crate::run::{Followers, RetryState, Training, peak_memory, run as run_training};
use crate::setup::error::{Result, WorkerError};
use crate::setup::facts::{self, RankFacts};
use crate::setup::fingerprint;
use crate::setup::host::{self, Host};
use crate::setup::nodes::{self, Agreed};
use crate::setup::opening::Opening;
use crate::setup::survey::{self, Surveyed};
use crate::setup::{Setup, cores_per_rank, loader_options};
use crate::step::exchange::Exchange;
use crate::step::recover::{Limits, catch_torch_panic};
use crate::step::{LoaderFeed, Phases, Stepper, new_executor};
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
        None => start(&Recipe::with_custom(&Source::find(&request.recipe)?, &request.overrides, custom)?),
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
    let mut host = Host::enter(recipe, env)?;
    let fault = Fault::from_env(env.rank)?;
    let joined = join_run::<T>(request, recipe, env, &host)?;
    let Joined { run: Prepared { opening, mut setup, claims: _claims }, ranks, agreed } = joined;
    let is_shared = matches!(agreed.gathering, Gathering::Shared);
    host.stop.handle_signals().map_err(WorkerError::Signals)?;
    let inputs = start::PlanInputs::of_rank(request, &opening.survey, recipe, env, &host);
    start::with_smallest_step::<T, _, _>(&inputs, recipe, || share_state(&ranks, &mut setup))?;
    if host::counts_copies(recipe, host.device) {
        let copies = bytes_of_copies(&setup, &ranks, &agreed, host.device)?;
        if let (Some(note), 0) = (host.leave_room(recipe, copies, env.local_world_size), env.rank) {
            tracing::info!("{note}");
        }
    }
    let chosen = start::choose_cuts::<T>(&ranks, &mut setup, request, recipe, &opening.survey, &host)?;
    host.enforce();
    let run_dir = RunDir::new(&opening.run_dir);
    let manifest = setup.resumed.as_ref().map(|resumed| &resumed.manifest);
    let origin = ResumeOrigin {
        run_dir: &run_dir,
        from_memory: opening.copies.is_some(),
        is_foreign: opening.is_foreign,
        evaluation_missing: manifest.is_some_and(|manifest| manifest.evaluation_missing),
    };
    let mut followers = followers(recipe, agreed, &setup, env, &host, &ranks, origin)?;
    if env.rank == 0 {
        describe_run(recipe, &setup, env, &host, &chosen, &run_dir, &mut followers)?;
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
            env,
            ranks: &ranks,
            device: host.device,
            stop: &host.stop,
        };
        match evaluation::test::<T>(&evaluation, &run_dir, host.style)? {
            Some(figures) => result.test = figures,
            None => status = ExitStatus::Requeue,
        }
    }
    ranks.shutdown().map_err(TrainError::from)?;
    result.resume_ms = resumed_in.map(|took| 1e3 * took.as_secs_f64());
    if env.rank == 0 {
        write_result(result, status, request, env, &run_dir, began.elapsed())?;
    }
    Ok(status)
}

/// Returns the bytes of host memory for a CPU rank's copies of the state: one for a checkpoint on the disk, and two in memory if
/// the ranks keep those. Every rank calls this.
fn bytes_of_copies(setup: &Setup, ranks: &Ranks, agreed: &Agreed, device: Device) -> Result<u64> {
    let (model, stages) = (&setup.replica.model, &setup.course.stages.stages);
    let writers = 0..agreed.gathering.writers(ranks.size());
    let bytes =
        checkpoint::copy_bytes(model, ranks, writers.clone(), device).map_err(WorkerError::Checkpoints)?;
    // A later phase may train more parameters, with their moments and average.
    let trained =
        stages.iter().flat_map(|stage| &stage.phases).map(|phase| phase.count(&model.registry)).max();
    let more = trained.unwrap_or(0).saturating_sub(model.table.trained_elements());
    let columns = model.table.moments().count() as u64 + u64::from(model.average.is_some());
    let more = more * columns * size_of::<f32>() as u64 / writers.len().max(1) as u64;
    Ok((bytes + more) * if agreed.copies.is_some() { 3 } else { 1 })
}

/// A run in which all ranks are connected.
struct Joined {
    run: Prepared,
    ranks: Ranks,
    agreed: Agreed,
}

/// Rank 0 decides how the run begins, or refuses it; the other ranks follow.
fn join_run<T: BuildTask + 'static>(
    request: &Request,
    recipe: &Recipe,
    env: &WorkerEnv,
    host: &Host,
) -> Result<Joined> {
    let rendezvous = Rendezvous::open(env.clone())?;
    let copies = host.copies.as_deref();
    let (view, mut run) = if env.rank == 0 {
        let mut run = prepare_run::<T>(request, recipe, env, host, &rendezvous).inspect_err(|error| {
            rendezvous.announce_failure(&error.to_string(), error.exit_status().code())
        })?;
        rendezvous.announce(&serde_json::to_vec(&run.opening)?)?;
        survey::serve(&run.opening.survey, &run.opening.lists, &rendezvous, env)?;
        (nodes::adapt(&mut run.opening, None, copies, env), run)
    } else {
        let own = match env.is_one_node() {
            true => Vec::new(),
            false => introduce::<T>(request, recipe, env, host, &rendezvous)?,
        };
        let mut opening: Opening = serde_json::from_slice(&rendezvous.receive_opening()?)?;
        opening.lists = survey::receive(&mut opening.survey, &own, &rendezvous, env)?;
        let view = nodes::adapt(&mut opening, request.run_dir.clone(), copies, env);
        let setup = start::build_setup::<T>(request, recipe, &opening, env, host)?;
        (view, Prepared { opening, setup, claims: Vec::new() })
    };
    let ranks = Ranks::new(rendezvous.connect(host.device)?);
    if let Some(sync) = &run.setup.batch_sync {
        sync.connect(rendezvous.connect_second_group("batch-norm", &ranks)?);
    }
    let agreed =
        nodes::agree(&run.opening, view, host.copies.clone(), &mut run.setup, &ranks, &rendezvous, env)?;
    Ok(Joined { run, ranks, agreed })
}

/// Sends rank 0 this rank's facts, for a comparison. The first rank of each node surveys its data and copies; returns the lists
/// of its survey.
fn introduce<T: BuildTask>(
    request: &Request,
    recipe: &Recipe,
    env: &WorkerEnv,
    host: &Host,
    rendezvous: &Rendezvous,
) -> Result<Vec<Packed<u8>>> {
    let is_first = env.local_rank == 0;
    let survey = is_first.then(|| Surveyed::of::<T>(recipe)).transpose()?;
    let of_survey =
        |survey: &Surveyed| facts::of_node(recipe, &fingerprint::digest(&survey.facts), request.prepared);
    let node = survey.as_ref().map(of_survey).unwrap_or_default();
    let mut facts = RankFacts::of_rank(recipe, host.device, node)?;
    if let (Some(folder), true) = (&host.copies, is_first) {
        facts.copies = checkpoint::held_copies(folder);
    }
    rendezvous.introduce(&serde_json::to_vec(&facts)?)?;
    Ok(survey.map(|survey| survey.lists).unwrap_or_default())
}

/// Broadcasts rank 0's parameters and buffers, so that all ranks begin with the same state.
fn share_state(ranks: &Ranks, setup: &mut Setup) -> Result<(), TrainError> {
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

/// Returns the followers of a run in the order of their calls.
fn followers<'a>(
    recipe: &Recipe,
    agreed: Agreed,
    setup: &Setup,
    env: &WorkerEnv,
    host: &Host,
    ranks: &Ranks,
    origin: ResumeOrigin<'a>,
) -> Result<Followers<'a>> {
    let course = &setup.course;
    let (plan, done) = (&course.plan, course.done);
    let (heartbeat, cores) = (Heartbeat::from_env(), cores_per_rank(env.local_world_size));
    let manifest = setup.resumed.as_ref().map(|resumed| &resumed.manifest);
    let run_dir = origin.run_dir;
    let mut list: Vec<Box<dyn Follower + 'a>> =
        vec![Box::new(Health::new(plan.total_steps)), Box::new(heartbeat.clone())];
    if env.rank == 0 {
        let path = run_dir.metrics();
        let metrics = MetricsLog::open(&path, done, origin.evaluation_missing)
            .map_err(|source| WorkerError::Write { path, source })?;
        list.push(Box::new(metrics.on_failure(recipe.checkpoint.on_failure)));
    }
    let earlier = manifest.map(|manifest| manifest.metrics.clone());
    list.push(Box::new(Figures::new(earlier.unwrap_or_default())));
    let (total, epochs, every) = (plan.total_steps, plan.epochs(), recipe.log.every_steps);
    list.push(Box::new(Progress::new(host.style, total, epochs, every, done)));
    if let Some(place) = agreed.copies {
        let copies =
            MemoryCopies::new(place, ranks, host.device, cores, done).map_err(WorkerError::Checkpoints)?;
        list.push(Box::new(Copies::new(copies, heartbeat.clone(), done)));
    }
    list.push(Box::new(host.stop.clone()));
    let checkpoints = Checkpoints::new(run_dir, ranks, agreed.gathering, host.device, cores)
        .map_err(WorkerError::Checkpoints)?;
    let (stop, every) = (host.stop.clone(), recipe.checkpoint.every.time());
    list.push(Box::new(Archive::new(checkpoints, heartbeat, stop, course, every, origin)));
    Ok(Followers::new(list))
}

fn training<'a>(
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
    let work = course.plan.micro_batches(ranks.rank(), course.done);
    let feed = LoaderFeed::start(model.task.facts().train.clone(), loader, work, device)?;
    let mut exchange = Exchange::new(ranks, batch_sync, &model.table, recipe.reduce.clone())?;
    exchange.prepare_statuses(model.task.facts().sums)?;
    let phases = Phases::new(MemoryStats::Device(device), fault);
    let limits = Limits::new(device, recipe.memory.budget);
    let executor = new_executor(recipe.model.compile, device);
    Ok(Training {
        stepper: Stepper::new(model, feed, executor, phases, limits)?,
        retry: RetryState::new(loader, &course.plan),
        recipe,
        course,
        replica,
        exchange,
        began: Instant::now(),
    })
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
