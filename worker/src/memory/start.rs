//! The cut of every stage, chosen before the first step from what symbolic steps would take.

use crate::plan::{Asked, Choice, Cut, PlanError, Prediction, Predictor, Solver};
use dtrain_common::recipe::{Amp, MicroBatch, Recipe, Recompute};
use dtrain_common::units::ByteSize;
use dtrain_torch_shim::rng;
use serde_json::Value;
use tch::{Device, Tensor};

use super::{SymbolicPredictor, Target, elsewhere};
use crate::collectives::{Ranks, ReduceOp};
use crate::engine::{Exhausted, JointSum, RankSync, TrainError};
use crate::error::WorkerError;
use crate::out_of_memory::bytes_refused;
use crate::tasks::BuildTask;
use crate::worker::Request;

/// One part in so many of what tensors may take is left to what a prediction does not know of, such as a kernel's scratch.
const SLACK: u64 = 200;

/// What was chosen for a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Chosen {
    /// The cut, and what it is predicted to take.
    pub(crate) prediction: Prediction,
    /// Whether that is within the budget. Where nothing that the recipe leaves free is, it is the smallest cut of those.
    pub(crate) fits: Fits,
}

/// Whether a cut was found within the budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fits {
    /// There is one.
    Yes,
    /// None that the recipe leaves free is, but this one is, which the recipe rules out by a number or a switch.
    IfFreed(Cut),
    /// None is.
    No,
}

/// The smallest budget of all ranks, in bytes: what fits there fits everywhere. Every rank calls it.
///
/// # Errors
/// Where a peer is lost.
pub(crate) fn agree(ranks: &Ranks, own: u64) -> Result<u64, TrainError> {
    let least = Tensor::f_from_slice(&[-(own as f64)])?;
    ranks.all_reduce(&least, ReduceOp::Max)?.wait()?;
    Ok((-f64::try_from(&least)?) as u64)
}

/// Rank 0's choice for every stage, which all ranks get: micro-batch and segments; None for a stage of which it has made none.
/// Every rank calls it, the others with any list of as many stages.
///
/// # Errors
/// Where a peer is lost.
pub(crate) fn tell(
    ranks: &Ranks,
    stages: usize,
    chosen: &[Option<Chosen>],
) -> Result<Vec<Option<(usize, usize)>>, TrainError> {
    let mut numbers = vec![0i64; 2 * stages];
    for (pair, chosen) in numbers.chunks_exact_mut(2).zip(chosen) {
        if let Some(Chosen { prediction, .. }) = chosen {
            pair[0] = prediction.cut.micro_batch as i64;
            pair[1] = prediction.cut.recompute as i64;
        }
    }
    let numbers = Tensor::f_from_slice(&numbers)?;
    ranks.broadcast(&numbers, 0)?.wait()?;
    let numbers = Vec::<i64>::try_from(&numbers)?;
    let pair = |pair: &[i64]| (pair[0] > 0).then_some((pair[0] as usize, pair[1] as usize));
    Ok(numbers.chunks_exact(2).map(pair).collect())
}

/// Chooses for every stage of the recipe that leaves something free. `room` is what the tensors of a rank may take, in bytes, and on
/// which device.
/// A model of which no symbolic step can be run is left to its first real step.
///
/// # Errors
/// None known beside those of generators.
pub(crate) fn choose<T: BuildTask + 'static>(
    request: &Request,
    recipe: &Recipe,
    survey: &Value,
    ranks: usize,
    room: (u64, Device),
    amp: Amp,
) -> Result<Vec<Option<Chosen>>, WorkerError> {
    // Building a model seeds the generator, also where nothing is drawn.
    let generator = rng::state(Device::Cpu).map_err(TrainError::from)?;
    let chosen = (0..recipe.stages())
        .map(|stage| {
            let alone = recipe.of_stage(stage);
            let free =
                alone.memory.micro_batch == MicroBatch::Auto || alone.memory.recompute == Recompute::Auto;
            if !free {
                return None;
            }
            let chosen = choose_for::<T>(request, &alone, survey.clone(), stage, (ranks, room, amp));
            chosen
                .inspect_err(|error| tracing::debug!("no symbolic step: {error}"))
                .ok()
        })
        .collect();
    rng::set_state(Device::Cpu, &generator).map_err(TrainError::from)?;
    Ok(chosen)
}

/// Tells a rank's normalisations which sums a micro-step takes, so that a rank which runs out of memory in the very first one can
/// take part in the others' all the same. Every rank calls it, with the cut that was chosen.
///
/// # Errors
/// Where there is no memory to take part with; those of generators.
pub(crate) fn foresee<T: BuildTask + 'static>(
    sync: &RankSync,
    request: &Request,
    survey: &Value,
    stage: usize,
    cut: Cut,
    device: Device,
) -> Result<(), WorkerError> {
    let generator = rng::state(Device::Cpu).map_err(TrainError::from)?;
    let mut predictor =
        SymbolicPredictor::<T>::new(&request.recipe, &request.overrides, survey.clone(), stage);
    let sums = predictor.joint_sums(cut);
    rng::set_state(Device::Cpu, &generator).map_err(TrainError::from)?;
    match sums {
        Ok(sums) if !sums.is_empty() => {
            let there = |sum| JointSum { device, ..sum };
            Ok(sync.learn(sums.into_iter().map(there).collect())?)
        }
        Ok(_) => Ok(()),
        // They are learnt in the first micro-step then.
        Err(error) => {
            tracing::debug!("no symbolic step: {error}");
            Ok(())
        }
    }
}

/// What to say where not even the model's state found room: what the smallest step would take. Other errors as they are.
pub(crate) fn explained<T: BuildTask + 'static>(
    error: WorkerError,
    request: &Request,
    recipe: &Recipe,
    survey: &Value,
    ranks: usize,
    room: (u64, Device),
) -> WorkerError {
    if !error.is_out_of_memory() {
        return error;
    }
    let amp = match recipe.precision.amp {
        Amp::Auto => Amp::Off,
        stated => stated,
    };
    // The smallest step of all, also where the recipe states a larger one.
    let mut free = recipe.of_stage(0);
    free.memory.micro_batch = MicroBatch::Auto;
    let smallest = solve_for::<T, _>(
        request,
        &free,
        survey.clone(),
        0,
        (ranks, room, amp),
        |solver, asked| solver.smallest(asked),
    );
    let Ok(prediction) = smallest else {
        return error;
    };
    let (may, takes) = (ByteSize(room.0), ByteSize(prediction.peak));
    let place = match prediction.peak > room.0 {
        true => format!("before the first step: tensors may take {may}, and the smallest step takes {takes}"),
        false => format!(
            "before the first step: tensors may take {may}, which is enough for the smallest step, of {takes}, and too little to \
             build the model"
        ),
    };
    WorkerError::Train(TrainError::OutOfMemory(Box::new(Exhausted {
        place,
        batch: prediction.cut.micro_batch,
        refused: bytes_refused(&error.to_string()),
        owners: prediction.owners,
        predicted: true,
        elsewhere: elsewhere(room.1),
    })))
}

fn choose_for<T: BuildTask + 'static>(
    request: &Request,
    alone: &Recipe,
    survey: Value,
    stage: usize,
    on: (usize, (u64, Device), Amp),
) -> Result<Chosen, PlanError<WorkerError>> {
    solve_for::<T, _>(request, alone, survey, stage, on, |solver, asked| {
        let choice = solver.solve(asked)?;
        let fits = match choice {
            Choice::Fit(_) => Fits::Yes,
            Choice::NoFit(_) => freed(solver, asked)?.map_or(Fits::No, Fits::IfFreed),
        };
        Ok(Chosen {
            prediction: *choice.prediction(),
            fits,
        })
    })
}

/// The cut that would fit where the recipe left micro-batch and recompute free.
fn freed<P: Predictor>(
    solver: &mut Solver<'_, P>,
    asked: &Asked,
) -> Result<Option<Cut>, PlanError<P::Error>> {
    let free = Asked {
        micro_batch: MicroBatch::Auto,
        recompute: Recompute::Auto,
        ..*asked
    };
    if free == *asked {
        return Ok(None);
    }
    Ok(match solver.solve(&free)? {
        Choice::Fit(fit) => Some(fit.prediction.cut),
        Choice::NoFit(_) => None,
    })
}

fn solve_for<T: BuildTask + 'static, R>(
    request: &Request,
    alone: &Recipe,
    survey: Value,
    stage: usize,
    (ranks, (limit, device), amp): (usize, (u64, Device), Amp),
    solve: impl FnOnce(&mut Solver<'_, SymbolicPredictor<T>>, &Asked) -> Result<R, PlanError<WorkerError>>,
) -> Result<R, PlanError<WorkerError>> {
    let mut predictor = SymbolicPredictor::<T>::new(&request.recipe, &request.overrides, survey, stage)
        .on(Target::of(device));
    let subject = predictor.subject(&[]).map_err(PlanError::Predict)?;
    let asked = Asked {
        ranks,
        budget: limit - limit / SLACK,
        micro_batch: alone.memory.micro_batch,
        amp,
        recompute: alone.memory.recompute,
        shard_optimizer: alone.memory.shard_optimizer,
    };
    solve(&mut Solver::new(&subject, &mut predictor), &asked)
}
