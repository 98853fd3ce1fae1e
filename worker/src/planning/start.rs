//! Chooses the cut of every stage before the first step, from symbolic steps.

use crate::planning::{Choice, Cut, CutRequest, Prediction, Predictor, Solver};
use crate::step::{Exhausted, StepError};
use dtrain_common::env::WorkerEnv;
use dtrain_common::progress::Progress;
use dtrain_common::units::ByteSize;
use dtrain_recipe::{Amp, MicroBatch, Recipe, Recompute};
use dtrain_torch_shim::rng;
use serde_json::Value;
use tch::{Device, Tensor};

use super::{SymbolicPredictor, Target};
use crate::OutOfMemory;
use crate::collectives::{Collective, Ranks, ReduceOp};
use crate::memory::{budget, other_usage, report};
use crate::out_of_memory::{catch_torch_panic, failed_allocation_bytes};
use crate::request::Request;
use crate::run::TrainError;
use crate::setup::Setup;
use crate::setup::error::WorkerError;
use crate::setup::host::Host;
use crate::setup::opening::Opening;
use crate::step::exchange::{JointSum, RankSync};
use crate::tasks::BuildTask;

/// 1/`SLACK` of the limit stays free, for memory that no prediction knows, such as a kernel's scratch.
const SLACK: u64 = 200;

/// The choice for a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ChosenCut {
    /// The cut, with its predicted memory.
    pub(crate) prediction: Prediction,
    /// Whether it is within the budget. If no allowed cut is, this is the smallest allowed cut.
    pub(crate) fits: Fits,
}

/// Whether a cut within the budget was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fits {
    Yes,
    /// No allowed cut fits. This cut would fit, but a number or switch of the recipe rules it out.
    IfUnrestricted(Cut),
    No,
}

/// The choices before the first step.
pub(crate) struct ChosenCuts {
    /// The choice for each stage, on rank 0 only; None if the recipe leaves nothing to choose.
    pub(crate) chosen: Vec<Option<ChosenCut>>,
    /// The smallest budget of all ranks, in bytes.
    pub(crate) limit: u64,
}

/// The conditions for choosing a cut.
#[derive(Clone, Copy)]
pub(crate) struct PlanInputs<'a> {
    pub(crate) request: &'a Request,
    pub(crate) survey: &'a Value,
    pub(crate) ranks: usize,
    /// Bytes that the tensors of a rank may take.
    pub(crate) limit: u64,
    pub(crate) device: Device,
    pub(crate) amp: Amp,
}

impl<'a> PlanInputs<'a> {
    /// Returns the conditions of this rank, before all have agreed.
    pub(crate) fn of_rank(
        request: &'a Request,
        survey: &'a Value,
        recipe: &Recipe,
        env: &WorkerEnv,
        host: &Host,
    ) -> Self {
        let (limit, device) = (host.allowed, host.device);
        Self { request, survey, ranks: env.world_size, limit, device, amp: recipe.precision.amp }
    }

    /// Runs `solve` for `stage`, whose recipe is `alone`.
    fn solve<T: BuildTask + 'static, R>(
        &self,
        alone: &Recipe,
        stage: usize,
        solve: impl FnOnce(&mut Solver<'_, SymbolicPredictor<'a, T>>, &CutRequest) -> Result<R, WorkerError>,
    ) -> Result<R, WorkerError> {
        let target = Target::of(self.device);
        let mut predictor = SymbolicPredictor::<T>::new(self.request, self.survey, stage, target);
        let subject = predictor.subject(&[])?;
        let budget = self.limit - self.limit / SLACK;
        let cut_request = CutRequest::new(alone, self.ranks, budget, self.amp);
        solve(&mut Solver::new(&subject, &mut predictor), &cut_request)
    }
}

/// Sets every stage's cut to rank 0's choice, prepares BatchNorm sums for it, and limits the tensors. Every rank calls this,
/// with its own `inputs`, whose `limit` and `amp` are replaced by what all have agreed on.
pub(crate) fn choose_cuts<T: BuildTask + 'static>(
    ranks: &Ranks,
    setup: &mut Setup,
    inputs: &PlanInputs<'_>,
    recipe: &Recipe,
    host: &Host,
) -> Result<ChosenCuts, WorkerError> {
    let limit = smallest_budget(ranks, host.allowed)?;
    let inputs = PlanInputs { limit, amp: setup.replica.precision.amp(), ..*inputs };
    let chosen = if ranks.rank() == 0 {
        let _progress = Progress::start("choosing the micro-batch");
        choose_on_rank_0::<T>(&inputs, recipe)?
    } else {
        Vec::new()
    };
    // The copies for checkpoints, which are known only now, may leave less than the built model has.
    if ranks.rank() == 0
        && report(host.device).map_err(TrainError::from)?.allocated > limit
        && let Some(error) = smallest_step::<T>(&inputs, recipe, None)
    {
        return Err(error);
    }
    let plan = &mut setup.course.plan;
    let stages = plan.stages.len();
    for (stage, cut) in broadcast_choice(ranks, stages, &chosen)?.into_iter().enumerate() {
        let Some((micro_batch, segments)) = cut else { continue };
        plan.stages[stage].recompute = segments;
        if let Some(cut) = plan.with_micro_batches(stage, micro_batch) {
            *plan = cut;
        }
    }
    if let Some(sync) = &setup.batch_sync {
        let first = setup.course.stage();
        let cut = Cut {
            ranks: inputs.ranks,
            micro_batch: first.partition.micro_batch(),
            amp: inputs.amp,
            recompute: first.recompute,
            shard_optimizer: recipe.memory.shard_optimizer,
        };
        predict_joint_sums::<T>(sync, &inputs, setup.course.current.id.stage, cut)?;
    }
    budget::enforce(host.allowed, host.device);
    Ok(ChosenCuts { chosen, limit })
}

/// Returns the smallest budget of all ranks in bytes: a cut that fits there fits all. Every rank calls this.
fn smallest_budget(ranks: &Ranks, own: u64) -> Result<u64, TrainError> {
    let least = Tensor::f_from_slice(&[-(own as f64)])?;
    ranks.all_reduce(&least, ReduceOp::Max)?.wait()?;
    Ok((-f64::try_from(&least)?) as u64)
}

/// Broadcasts rank 0's choice of micro-batch and segments for every stage; None for a stage without a choice.
/// Every rank calls this; `chosen` of the other ranks is ignored.
fn broadcast_choice(
    ranks: &Ranks,
    stages: usize,
    chosen: &[Option<ChosenCut>],
) -> Result<Vec<Option<(usize, usize)>>, TrainError> {
    let mut numbers = vec![0i64; 2 * stages];
    for (pair, chosen) in numbers.chunks_exact_mut(2).zip(chosen) {
        if let Some(ChosenCut { prediction: Prediction { cut, .. }, .. }) = chosen {
            pair.copy_from_slice(&[cut.micro_batch as i64, cut.recompute as i64]);
        }
    }
    let numbers = Tensor::f_from_slice(&numbers)?;
    ranks.start(Collective::Broadcast(&numbers, 0))?.wait()?;
    let numbers = Vec::<i64>::try_from(&numbers)?;
    let pair = |pair: &[i64]| (pair[0] > 0).then_some((pair[0] as usize, pair[1] as usize));
    Ok(numbers.chunks_exact(2).map(pair).collect())
}

/// Chooses a cut for every stage of the recipe that leaves something to choose. If a model cannot run a
/// symbolic step, nothing is chosen for it.
fn choose_on_rank_0<T: BuildTask + 'static>(
    inputs: &PlanInputs<'_>,
    recipe: &Recipe,
) -> Result<Vec<Option<ChosenCut>>, WorkerError> {
    let stage = |stage: usize| {
        let alone = recipe.of_stage(stage);
        let memory = &alone.memory;
        if memory.micro_batch != MicroBatch::Auto && memory.recompute != Recompute::Auto {
            return None;
        }
        let chosen = inputs.solve::<T, _>(&alone, stage, solve_or_relax);
        chosen.inspect_err(warn_of_no_plan).ok()
    };
    keep_generator(|| (0..recipe.stages()).map(stage).collect())
}

/// Warns that no cut is chosen, and of what the run does instead.
fn warn_of_no_plan(error: &WorkerError) {
    let why = match error {
        WorkerError::Unpredicted(reason) => reason.clone(),
        other => other.to_string(),
    };
    tracing::warn!(
        "memory is not planned: {why}. The run starts with the largest micro-batch and without recompute, and makes its \
         steps smaller when memory runs out; set memory.micro_batch and memory.recompute to avoid this"
    );
}

/// Restores the CPU's random generator after `build`: building a model seeds it, even if nothing is drawn.
fn keep_generator<R>(build: impl FnOnce() -> R) -> Result<R, WorkerError> {
    let generator = rng::state(Device::Cpu).map_err(TrainError::from)?;
    let built = build();
    rng::set_state(Device::Cpu, &generator).map_err(TrainError::from)?;
    Ok(built)
}

/// Predicts the BatchNorm sums of a micro-step, so that a rank that runs out of memory in the very first one
/// can still take part in the others' sums. Every rank calls this, with the chosen cut.
fn predict_joint_sums<T: BuildTask + 'static>(
    sync: &RankSync,
    inputs: &PlanInputs<'_>,
    stage: usize,
    cut: Cut,
) -> Result<(), WorkerError> {
    let mut predictor = SymbolicPredictor::<T>::new(inputs.request, inputs.survey, stage, Target::Cpu);
    match keep_generator(|| predictor.joint_sums(cut))? {
        Ok(sums) => {
            let there = |sum| JointSum { device: inputs.device, ..sum };
            Ok(sync.set_sums(sums.map(|of_pass| of_pass.into_iter().map(there).collect()))?)
        }
        // The first micro-step then records them.
        Err(error) => {
            tracing::debug!("cannot run a symbolic step: {error}");
            Ok(())
        }
    }
}

/// Builds this rank's task and model; running out of memory is explained as by [`with_smallest_step`].
pub(crate) fn build_setup<T: BuildTask + 'static>(
    request: &Request,
    recipe: &Recipe,
    opening: &Opening,
    env: &WorkerEnv,
    host: &Host,
) -> Result<Setup, WorkerError> {
    let inputs = PlanInputs::of_rank(request, &opening.survey, recipe, env, host);
    let _progress = Progress::of_rank(env.rank, "building the model");
    with_smallest_step::<T, _, _>(&inputs, recipe, || {
        Setup::build::<T>(recipe, opening, env, host.device, None)
    })
}

/// Runs a part of the start, and adds the smallest step's memory to an out-of-memory error of it.
pub(crate) fn with_smallest_step<T: BuildTask + 'static, R, E: Into<WorkerError>>(
    inputs: &PlanInputs<'_>,
    recipe: &Recipe,
    body: impl FnOnce() -> Result<R, E>,
) -> Result<R, WorkerError> {
    let outcome = match catch_torch_panic(body) {
        Ok(outcome) => outcome.map_err(Into::into),
        Err(panic) => Err(TrainError::from(panic).into()),
    };
    outcome.map_err(|error| match error.is_out_of_memory() {
        true => {
            smallest_step::<T>(inputs, recipe, failed_allocation_bytes(&error.to_string())).unwrap_or(error)
        }
        false => error,
    })
}

/// Returns the error of a start without memory, with the smallest step's memory if that can be predicted.
fn smallest_step<T: BuildTask + 'static>(
    inputs: &PlanInputs<'_>,
    recipe: &Recipe,
    requested_bytes: Option<u64>,
) -> Option<WorkerError> {
    let amp = if inputs.amp == Amp::Auto { Amp::Off } else { inputs.amp };
    // The smallest possible step, even if the recipe states a larger one.
    let mut free = recipe.of_stage(0);
    free.memory.micro_batch = MicroBatch::Auto;
    let smallest = PlanInputs { amp, ..*inputs }
        .solve::<T, _>(&free, 0, |solver, cut_request| solver.smallest(cut_request));
    let prediction = smallest.ok()?;
    let (limit, needed) = (ByteSize(inputs.limit), ByteSize(prediction.peak));
    let location = match prediction.peak > inputs.limit {
        true => format!(
            "before the first step: tensors are limited to {limit}, but the smallest step needs {needed}"
        ),
        false => format!(
            "before the first step: tensors are limited to {limit}, enough for the smallest step ({needed}), but not to build the \
             model"
        ),
    };
    Some(WorkerError::from(StepError::OutOfMemory(Box::new(Exhausted {
        location,
        batch: prediction.cut.micro_batch,
        reason: None,
        requested_bytes,
        owners: prediction.owners,
        predicted: true,
        other_usage: other_usage(inputs.device),
    }))))
}

/// Chooses a cut. If no allowed cut fits, also searches with micro-batch and recompute free.
fn solve_or_relax<P: Predictor>(
    solver: &mut Solver<'_, P>,
    cut_request: &CutRequest,
) -> Result<ChosenCut, P::Error> {
    let choice = solver.solve(cut_request)?;
    let free = CutRequest { micro_batch: MicroBatch::Auto, recompute: Recompute::Auto, ..*cut_request };
    let fits = match choice {
        Choice::Fit { .. } => Fits::Yes,
        Choice::NoFit { .. } if free == *cut_request => Fits::No,
        Choice::NoFit { .. } => match solver.solve(&free)? {
            Choice::Fit { prediction, .. } => Fits::IfUnrestricted(prediction.cut),
            Choice::NoFit { .. } => Fits::No,
        },
    };
    Ok(ChosenCut { prediction: *choice.prediction(), fits })
}
