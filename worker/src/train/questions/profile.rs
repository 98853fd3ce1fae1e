//! `dtrain profile`: compares real steps with their prediction, and finds the largest micro-batch that fits.

use crate::planning::{
    Choice, Cut, CutRequest, MeasuredStage, Optimal, Prediction, Profile, ProfileQuestion, ProfiledStage,
    Solver, Subject as Planned, SymbolicPredictor, Target, Trial, TrialOutcome, find_largest,
};
use dtrain_common::exit::ExitStatus;
use dtrain_common::progress::Progress;
use dtrain_recipe::Amp;
use tch::Device;

use super::trial::{CutTrial, NO_LIMIT, ProcessOutcome, start};
use super::{Subject, print_answer};
use crate::device;
use crate::memory::budget;
use crate::run::TrainError;
use crate::setup::error::{Result, WorkerError};
use crate::setup::room;
use crate::step::Precision;
use crate::tasks::BuildTask;

/// Steps of a measurement; the first is not timed.
const STEPS: usize = 4;
/// Steps of a try.
const TRY_STEPS: usize = 2;

pub(super) fn run<T: BuildTask + 'static>(
    subject: Subject<'_>,
    question: &ProfileQuestion,
    device: Device,
) -> Result<ExitStatus> {
    let numbers = super::select_stages(subject.recipe, Some(&question.stage))?;
    let limit =
        budget::bytes(subject.recipe.memory.budget, device, question.nproc).map_err(TrainError::from)?;
    let amp = Precision::new(&subject.recipe.precision, device)?.amp();
    let limit = beside_checkpoints::<T>(&subject, question.nproc, limit, device, amp)?;
    let (mut stages, mut fits) = (Vec::new(), true);
    for stage in numbers {
        let (profiled, fitting) = profile_stage::<T>(&subject, question, stage, limit, device, amp)?;
        stages.push(profiled);
        fits &= fitting;
    }
    let profile = Profile { device: device::name(device), budget: limit, stages };
    print_answer(&profile.render(question.json).map_err(WorkerError::Question)?);
    Ok(if fits { ExitStatus::Success } else { ExitStatus::OutOfMemory })
}

/// Returns what a rank of a run leaves of `limit` for its tensors beside the copy of a checkpoint.
fn beside_checkpoints<T: BuildTask + 'static>(
    subject: &Subject<'_>,
    ranks: usize,
    limit: u64,
    device: Device,
    amp: Amp,
) -> Result<u64> {
    let recipe = subject.recipe;
    if !room::is_shared(recipe, device) {
        return Ok(limit);
    }
    let mut copies = 0;
    for stage in 0..recipe.stages() {
        let mut predictor =
            SymbolicPredictor::<T>::new(subject.request, &subject.survey, stage, Target::of(device));
        let planned_for = predictor.subject(&[])?;
        let request = CutRequest::new(&recipe.of_stage(stage), ranks, limit, amp);
        let Prediction { cut, owners, .. } = Solver::new(&planned_for, &mut predictor).smallest(&request)?;
        // Ranks on one machine share the writing; a sharded optimizer is shared already.
        let (whole, optimizer) = (owners.parameters + owners.ema + owners.buffers, owners.optimizer);
        let shared = whole + if cut.shard_optimizer { 0 } else { optimizer };
        copies = copies.max(shared.div_ceil(ranks as u64) + optimizer * u64::from(cut.shard_optimizer));
    }
    Ok(room::beside(recipe, limit, copies, ranks))
}

/// Profiles one stage, and returns whether any cut of it fits.
fn profile_stage<T: BuildTask + 'static>(
    subject: &Subject<'_>,
    question: &ProfileQuestion,
    stage: usize,
    limit: u64,
    device: Device,
    amp: Amp,
) -> Result<(ProfiledStage, bool)> {
    let (request, alone) = (subject.request, subject.recipe.of_stage(stage));
    let progress = Progress::start("predicting memory");
    let mut predictor = SymbolicPredictor::<T>::new(request, &subject.survey, stage, Target::of(device));
    let planned_for = predictor.subject(&[])?;
    let cut_request = CutRequest::new(&alone, question.nproc, limit, amp);
    let choice = Solver::new(&planned_for, &mut predictor).solve(&cut_request)?;
    drop(progress);
    let cut = choice.prediction().cut;
    let name = subject.recipe.stage.get(stage);
    let trial = |cut, steps, limit| CutTrial { cut, stage, steps, limit };
    let progress =
        Progress::start(format!("measuring {STEPS} steps in micro-batches of {}", cut.micro_batch));
    let measured = match start(request, &[], &trial(cut, STEPS, limit))? {
        ProcessOutcome::Ran(measured) => Some(MeasuredStage {
            stage: name.map_or_else(|| "all".to_owned(), |stage| stage.name.clone()),
            micro_batch: cut.micro_batch,
            figures: *measured,
            predicted: *choice.prediction(),
        }),
        ProcessOutcome::OutOfMemory | ProcessOutcome::Died(_) => None,
    };
    drop(progress);
    let try_cut = |cut: Cut| {
        let _progress = Progress::start(format!("trying micro-batches of {}", cut.micro_batch));
        start(request, &[], &trial(cut, TRY_STEPS, NO_LIMIT))
    };
    let optimal = question.find_optimal.then(|| search(&planned_for, cut, limit, try_cut)).transpose()?;
    let found = optimal.as_ref().is_some_and(|optimal| optimal.largest.is_some());
    let fits = found || (measured.is_some() && matches!(choice, Choice::Fit { .. }));
    let profiled = ProfiledStage { subject: planned_for, measured, optimal };
    Ok((profiled, fits))
}

/// Tries micro-batches, each in a separate process.
fn search(
    planned_for: &Planned,
    cut: Cut,
    limit: u64,
    mut run: impl FnMut(Cut) -> Result<ProcessOutcome>,
) -> Result<Optimal> {
    let whole = planned_for.partition(cut.ranks, None)?;
    // Sizes that occur: a limit of 15 of 16 samples results in micro-batches of 8.
    let occurs = |limit: &usize| {
        let partition = planned_for.partition(cut.ranks, Some(*limit));
        partition.is_ok_and(|partition| partition.micro_batch() == *limit)
    };
    let sizes = planned_for.min_micro_batch..=whole.micro_batch();
    let sizes: Vec<usize> = sizes.filter(occurs).collect();
    let mut trials = Vec::new();
    let found = find_largest(&sizes, limit, |micro_batch| {
        let (outcome, peak) = match run(Cut { micro_batch, ..cut })? {
            ProcessOutcome::Ran(measured) => (TrialOutcome::Ran(measured.peak), Some(measured.peak)),
            ProcessOutcome::OutOfMemory => (TrialOutcome::OutOfMemory, None),
            ProcessOutcome::Died(how) => (TrialOutcome::Died(how), None),
        };
        trials.push(Trial { micro_batch, outcome });
        Ok::<_, WorkerError>(peak)
    })?;
    Ok(Optimal { largest: found.map(|at| sizes[at]), limit, trials })
}
