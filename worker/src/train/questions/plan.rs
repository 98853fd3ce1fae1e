//! `dtrain plan`.

use std::collections::HashMap;

use crate::planning::{
    Cut, Measured, MemoryPlan, Mode, PlanQuestion, Prediction, Predictor, SymbolicPredictor, Target, report,
};
use dtrain_common::exit::ExitStatus;
use dtrain_common::progress::Progress;
use tch::Device;

use super::trial::{CutTrial, NO_LIMIT, ProcessOutcome, start};
use super::{Subject, print_answer};
use crate::data::free_host_bytes;
use crate::request::Request;
use crate::setup::error::{Result, WorkerError};
use crate::step::Precision;
use crate::tasks::BuildTask;

pub(super) fn run<T: BuildTask + 'static>(
    subject: Subject<'_>,
    question: &PlanQuestion,
) -> Result<ExitStatus> {
    let stages = super::select_stages(subject.recipe, question.stage.as_deref())?;
    let mut question = question.clone();
    for cpu in question.gpus.iter_mut().filter(|gpu| gpu.cpu) {
        // The run's own check, before any figure.
        Precision::new(&subject.recipe.precision, Device::Cpu)?;
        if cpu.bytes == 0 {
            cpu.bytes = free_host_bytes();
        }
    }
    let question = &question;
    let progress = Progress::start("predicting memory");
    let mut out = String::new();
    let mut fits = true;
    for stage in stages {
        let name = subject.recipe.stage.get(stage).map(|stage| stage.name.clone());
        let question = PlanQuestion { stage: name, ..question.clone() };
        let plan = plan_stage::<T>(&subject, &question, stage)?;
        fits &= plan.fits();
        out += &plan.render(&question).map_err(WorkerError::Question)?;
    }
    drop(progress);
    print_answer(&out);
    Ok(if fits { ExitStatus::Success } else { ExitStatus::OutOfMemory })
}

fn plan_stage<T: BuildTask + 'static>(
    subject: &Subject<'_>,
    question: &PlanQuestion,
    stage: usize,
) -> Result<MemoryPlan> {
    let (request, alone) = (subject.request, subject.recipe.of_stage(stage));
    let mut symbolic = SymbolicPredictor::<T>::new(request, &subject.survey, stage, Target::GPU);
    let planned_for = symbolic.subject(&[])?;
    match question.mode {
        Mode::Symbolic => report(&alone, &planned_for, &mut symbolic, question),
        Mode::Measured => {
            let mut measured = MeasuringPredictor { request, stage, symbolic, pairs: HashMap::new() };
            report(&alone, &planned_for, &mut measured, question)
        }
    }
}

/// Two micro-batches, and their measurements.
type MeasuredPair = [(usize, Measured); 2];

/// Predicts from two measured micro-batches: memory is linear in the micro-batch.
struct MeasuringPredictor<'a, T> {
    request: &'a Request,
    stage: usize,
    /// Supplies batch sizes and operations, which need no measurement.
    symbolic: SymbolicPredictor<'a, T>,
    /// Keys: overrides, and the cut without its micro-batch.
    pairs: HashMap<(Vec<String>, Cut), MeasuredPair>,
}

/// Steps of a measurement: memory no longer changes after the second.
const STEPS: usize = 2;

impl<T: BuildTask + 'static> MeasuringPredictor<'_, T> {
    fn measured(&self, overrides: &[String], cut: Cut) -> Result<Measured> {
        let trial = CutTrial { cut, stage: self.stage, steps: STEPS, limit: NO_LIMIT };
        let micro_batch = cut.micro_batch;
        let why = match start(self.request, overrides, &trial)? {
            ProcessOutcome::Ran(measured) => return Ok(*measured),
            ProcessOutcome::OutOfMemory => {
                format!("a micro-batch of {micro_batch} does not fit on this machine")
            }
            ProcessOutcome::Died(how) => {
                format!("the process that measured a micro-batch of {micro_batch} died ({how})")
            }
        };
        Err(WorkerError::Trial(format!("{why}; plan without --measured, which needs no memory")))
    }
}

impl<T: BuildTask + 'static> Predictor for MeasuringPredictor<'_, T> {
    type Error = WorkerError;

    fn predict(&mut self, overrides: &[String], cut: Cut) -> Result<Prediction> {
        let share = self.symbolic.subject(overrides)?;
        let key = (overrides.to_vec(), Cut { micro_batch: 0, ..cut });
        let pair = match self.pairs.get(&key) {
            Some(pair) => *pair,
            None => {
                // One sample uses other kernels; memory is linear from two samples on.
                let most = share.effective_batch.div_ceil(cut.ranks);
                let first = share.min_micro_batch.max(2).min(most);
                let second = (2 * first).min(most);
                let at = |micro_batch| self.measured(overrides, Cut { micro_batch, ..cut });
                let pair = [(first, at(first)?), (second, at(second)?)];
                self.pairs.insert(key, pair);
                pair
            }
        };
        let [(first, low), (second, high)] = pair;
        let part = match second - first {
            0 => 0.0,
            between => (cut.micro_batch as f64 - first as f64) / between as f64,
        };
        let along = |low: u64, high: u64| (low as f64 + part * (high as f64 - low as f64)).max(0.0) as u64;
        let mut owners = high.owners;
        owners.activations = along(low.owners.activations, high.owners.activations);
        owners.workspace = along(low.owners.workspace, high.owners.workspace);
        Ok(Prediction {
            cut,
            mode: Mode::Measured,
            peak: owners.total(),
            owners,
            // Without a count, the advice compares times by the number of samples.
            flops: self.symbolic.predict(overrides, cut).map_or(0.0, |prediction| prediction.flops),
        })
    }
}
