//! Distributed evaluation: counts every sample of the test set once, for any number of ranks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use dtrain_common::batch::batches_of;
use dtrain_torch_shim::rng::{self, BySample};
use rand_chacha::rand_core::Rng;
use tch::{Device, Tensor};

use super::Training;
use super::follower::Followers;
use super::retry::{SmallerSteps, owners, report_oom};
use super::share_rows::{ShareRows, names};
use super::share_values::ShareValues;
use crate::collectives::{Ranks, ReduceOp};
use crate::data::rng::{Domain, keyed};
use crate::data::{Loader, LoaderOptions, MicroBatch, too_many_bad};
use crate::faults::Fault;
use crate::memory::Phase;
use crate::metrics::{EvalRecord, Figures, MicroBatches};
use crate::run::error::{Result, TrainError};
use crate::step::recover::{Limits, Shortage, catch_torch_panic, retry_on_oom};
use crate::step::{Precision, Status, Tally, Warned, gather_numbers, to_device};
use crate::stop::StopFlag;
use crate::tasks::{Batch, EvalSet, Facts, Mode, Passed, RowFigures, TEST, Task, TaskError, Totals};

/// The inputs of an evaluation: a model without its training.
pub(crate) struct Evaluator<'a> {
    pub(crate) task: &'a dyn Task,
    pub(crate) set: EvalSet,
    /// The names of the figures to compute; all without.
    pub(crate) figures: Option<&'a [String]>,
    pub(crate) ranks: &'a Ranks,
    pub(crate) precision: &'a Precision,
    pub(crate) loader: LoaderOptions,
    pub(crate) limits: Limits,
    pub(crate) stop: &'a StopFlag,
    /// The samples of a training step: a loss over a step is the mean over as many test samples at a time.
    pub(crate) step_samples: usize,
}

/// The sums over a rank's share of the test set.
struct Share {
    totals: Totals,
    /// The samples that do not count, because they or a member could not be read.
    left_out: usize,
    /// The numbers of what could not be read.
    unreadable: HashSet<u32>,
    /// For a loss over a step.
    values: ShareValues,
    rows: ShareRows,
}

/// The result of an evaluation, the same on every rank.
pub(crate) enum Evaluated {
    /// The figures, and the batch size with which they were computed.
    Whole(Box<EvalRecord>, usize),
    Stopped,
    /// The ranks that had no memory for the smallest batch, and its samples.
    Exhausted(Vec<Option<Shortage>>, usize),
}

/// Returns an error if a set that may be evaluated has fewer samples than a batch of the model.
pub(crate) fn check_sizes(task: &dyn Task) -> Result<()> {
    let Facts { batches, .. } = task.facts();
    let watched = task.facts().watched();
    let mut sets = std::iter::once(watched).chain(task.facts().tests());
    sets.try_for_each(|set| check_limits(&set, batches.evaluation_least, batches.evaluation_most))
}

fn check_limits(set: &EvalSet, least: usize, most: Option<usize>) -> Result<()> {
    let samples = set.samples.len();
    match most {
        _ if samples == 0 => Ok(()),
        _ if samples < least => Err(TrainError::SmallTestSet { set: set.name.clone(), samples, least }),
        // A rest of fewer than `least` samples goes to the batch before it.
        Some(most) if most + 1 < 2 * least => Err(TrainError::NarrowBatches { least, most }),
        _ => Ok(()),
    }
}

impl Evaluator<'_> {
    /// Evaluates the test set in batches of at most `batch` samples, or the fewest that the model takes: each rank its
    /// share, then it sums over ranks. If a rank runs out of memory, all ranks restart with half the batch. Every rank
    /// calls it.
    pub(crate) fn run(
        &self,
        batch: usize,
        step: u64,
        epoch: u64,
        fault: &mut Fault,
        warned: &mut Warned,
        followers: &mut Followers<'_>,
    ) -> Result<Evaluated> {
        let begun = Instant::now();
        let batches = self.task.facts().batches;
        let (least, most) = (batches.evaluation_least, batches.evaluation_most);
        check_limits(&self.set, least, most)?;
        let mut batch = batches.evaluated(batch);
        loop {
            let (status, of_rows) = self.attempt(batch, least, fault, warned, step, followers)?;
            if status.stop > 0.0 {
                return Ok(Evaluated::Stopped);
            }
            if !status.ran_out() {
                if status.totals.weight <= 0.0 {
                    return Err(TrainError::NothingTested { set: self.set.name.clone() });
                }
                let record = self.record(&status, of_rows, step, epoch, begun);
                return Ok(Evaluated::Whole(Box::new(record), batch));
            }
            if batch <= least {
                return Ok(Evaluated::Exhausted(status.shortages, batch));
            }
            self.limits.empty_cache();
            let sizes = MicroBatches { from: batch, to: (batch / 2).max(least) };
            let consequence =
                format!("restarting the evaluation with batches of {} instead of {}", sizes.to, sizes.from);
            let smaller = SmallerSteps { sizes, grad_accum_steps: 1, recompute: false, consequence };
            report_oom(followers, &status.shortages, "after", step, &smaller)?;
            batch = sizes.to;
        }
    }

    /// Returns the sums over the test set in batches of these samples, the usual and the fewest, and the ranks without
    /// memory; and the figures that are made of rows.
    fn attempt(
        &self,
        batch: usize,
        least: usize,
        fault: &mut Fault,
        warned: &mut Warned,
        step: u64,
        followers: &mut Followers<'_>,
    ) -> Result<(Status, Vec<(String, f64)>)> {
        let mut status = Status::empty(self.sums(), self.ranks.size());
        fault.begin(Phase::Evaluate, step, 1);
        let sums = catch_torch_panic(|| self.sum_up(batch, least, warned, followers))
            .unwrap_or_else(|error| Err(error.into()));
        fault.end();
        let (mut own, mut rows, mut unreadable) = Default::default();
        match self.limits.find_shortage(sums, Phase::Evaluate)? {
            Ok(Some(share)) => {
                (status.totals, status.bad_samples) = (share.totals, share.left_out as f64);
                (own, rows, unreadable) = (share.values, share.rows, share.unreadable);
            }
            Ok(None) => status.stop = 1.0,
            Err(shortage) => {
                self.limits.empty_cache();
                status.shortages[self.ranks.rank()] = Some(shortage);
            }
        }
        let merged = retry_on_oom(Device::Cpu, || Tensor::f_from_slice(&status.values()))?;
        self.ranks.all_reduce(&merged, ReduceOp::Sum)?.wait()?;
        let mut status = status.merge(&merged)?;
        if status.stop > 0.0 || status.ran_out() {
            return Ok((status, Vec::new()));
        }
        if status.bad_samples > 0.0 {
            let unreadable = unreadable.into_iter().collect::<Vec<_>>();
            let all: HashSet<u32> = gather_numbers(self.ranks, &unreadable)?.into_iter().collect();
            let (bad, total) = (all.len(), self.set.samples.count_singles());
            if too_many_bad(bad, total) {
                return Err(TrainError::TooManyBad { what: self.set.name.clone(), bad, total });
            }
        }
        if let Some(loss) = self.task.step_loss() {
            let samples = self.set.samples.len();
            let mean = own.mean(loss, samples, self.step_samples, self.ranks, self.limits.device)?;
            status.totals.loss_sum += mean * status.totals.weight;
        }
        let of_rows = match self.row_figures() {
            Some(_) => rows.figures(self.task, self.set.samples.len(), self.ranks)?,
            None => Vec::new(),
        };
        Ok((status, of_rows))
    }

    /// Returns the figures that only evaluations compute, if one of them is computed.
    fn row_figures(&self) -> Option<&dyn RowFigures> {
        let names = names(self.task, self.set.samples.len());
        self.task.row_figures().filter(|_| names.iter().any(|name| self.computes(name)))
    }

    /// Returns the number of sums: of the task, and of figures that only evaluations compute.
    fn sums(&self) -> usize {
        let further = self.row_figures().and_then(RowFigures::by_sums);
        self.task.facts().sums + further.map_or(0, |further| further.count())
    }

    fn computes(&self, name: &String) -> bool {
        self.figures.is_none_or(|wanted| wanted.contains(name))
    }

    /// Returns the sums over this rank's share of the set; None if a stop is requested before its end.
    fn sum_up(
        &self,
        batch: usize,
        least: usize,
        warned: &mut Warned,
        followers: &mut Followers<'_>,
    ) -> Result<Option<Share>> {
        let (set, of_rows) = (Arc::clone(&self.set.samples), self.row_figures());
        let own = batches_of(set.len(), self.ranks.size(), self.ranks.rank(), batch, least);
        let mut first = own.first().map_or(0, |batch| batch.start);
        let work = own.into_iter().map(|batch| MicroBatch::of(0, batch.map(|index| index as u32)));
        let options = LoaderOptions { augment: false, ..self.loader };
        let mut loader = Loader::start(Arc::clone(&set), options, work)?;
        let mut tally = Tally::new(self.sums(), self.limits.device)?;
        let (mut left_out, mut unreadable, mut values) = (0, HashSet::new(), ShareValues::default());
        let mut rows = match of_rows {
            Some(_) => ShareRows::new(self.task, set.len())?,
            None => ShareRows::default(),
        };
        while let Some(decoded) = loader.next() {
            if self.stop.is_requested() {
                return Ok(None);
            }
            let decoded = decoded?;
            left_out += decoded.weights.iter().filter(|weight| **weight == 0.0).count();
            unreadable.extend(decoded.unreadable());
            let batch = to_device(&decoded, warned, self.limits.device)?;
            loader.recycle(decoded);
            // Whatever was drawn before, an evaluation with the same batches gives the same figures.
            let seed = keyed(Domain::Evaluate, self.loader.seed, first as u64, 0).next_u64();
            rng::seed(seed)?;
            let key = keyed(Domain::BySample, self.loader.seed, 0, 1).next_u64();
            let _draws = BySample::enter(key, &(first..first + batch.weights.numel()))?;
            let passed = self.forward(|| pass(self.task, of_rows, &batch))?;
            if let Some(whole) = self.task.step_loss() {
                values.add(first, &passed.values, &batch.weights, whole)?;
            }
            if let Some(figures) = of_rows {
                rows.add(first, &passed.rows, figures)?;
            }
            tally.add(&passed.loss)?;
            first += batch.weights.numel();
            followers.advance();
        }
        Ok(Some(Share { totals: tally.totals()?, left_out, unreadable, values, rows }))
    }

    fn forward<T>(&self, compute: impl FnOnce() -> Result<T, TaskError>) -> Result<T> {
        Ok(self.precision.run(|| tch::no_grad(compute))??)
    }

    fn record(
        &self,
        status: &Status,
        of_rows: Vec<(String, f64)>,
        step: u64,
        epoch: u64,
        begun: Instant,
    ) -> EvalRecord {
        let (totals, unreadable) = (&status.totals, status.bad_samples as u64);
        let (of_task, further) = totals.sums.split_at(self.task.facts().sums);
        let own = Totals { sums: of_task.to_vec(), ..*totals };
        let named = self.task.figures(&own).into_iter().map(|(name, value)| (name.to_owned(), value));
        let figures = self.row_figures().and_then(RowFigures::by_sums);
        let (of_sums, mut by_class) = figures
            .map_or_else(Default::default, |figures| (figures.figures(further), figures.by_class(further)));
        by_class.retain(|of| self.computes(&of.figure));
        // One of the recipe takes the place of its name.
        let named = named.filter(|(name, _)| of_sums.iter().chain(&of_rows).all(|(other, _)| other != name));
        let named: Vec<_> = named.collect();
        let intervals =
            of_sums.iter().map(|(name, _)| name.clone()).filter(|name| name.ends_with("_95")).collect();
        let metrics =
            named.into_iter().chain(of_sums).chain(of_rows).filter(|(name, _)| self.computes(name)).collect();
        EvalRecord {
            set: (self.set.name != TEST).then(|| self.set.name.clone()),
            step,
            epoch,
            loss: totals.loss(),
            metrics: Figures(metrics),
            intervals,
            by_class,
            samples: self.set.samples.len() as u64 - unreadable,
            unreadable,
            eval_ms: begun.elapsed().as_secs_f64() * 1e3,
            best: None,
        }
    }
}

/// Computes a batch by the function that the task has for it.
fn pass(task: &dyn Task, of_rows: Option<&dyn RowFigures>, batch: &Batch) -> Result<Passed, TaskError> {
    let (loss, values) = match (of_rows, task.step_loss()) {
        (Some(figures), _) => return figures.forward(batch),
        (None, Some(whole)) => whole.forward(batch, Mode::Evaluate)?,
        (None, None) => (task.loss(batch, Mode::Evaluate)?, Vec::new()),
    };
    Ok(Passed { loss, values, rows: Vec::new() })
}

/// Evaluates the validation samples, or the test samples without any, with the moving average if any. Returns None if a rank was asked to stop.
pub(super) fn evaluate(
    training: &mut Training<'_>,
    stop: &StopFlag,
    followers: &mut Followers<'_>,
) -> Result<Option<EvalRecord>> {
    // The evaluation needs the memory. Without the shadow, gradients in a task use current weights.
    training.stepper.executor.drop_graphs();
    training.replica.model.set_shadow(None)?;
    training.replica.model.swap_average()?;
    let record = evaluate_live(training, stop, followers);
    training.replica.model.swap_average()?;
    let record = record?;
    training.replica.set_shadow()?;
    Ok(record)
}

fn evaluate_live(
    training: &mut Training<'_>,
    stop: &StopFlag,
    followers: &mut Followers<'_>,
) -> Result<Option<EvalRecord>> {
    let Training { recipe, course, replica, exchange, stepper, retry, .. } = training;
    let (step, last) = (course.done, course.done.saturating_sub(1));
    let settings = &recipe.evaluate;
    let usual = course.plan.stage(last).partition.micro_batch();
    let largest = settings.batch.value().unwrap_or(usual);
    let first = retry.evaluation_batch.map_or(largest, |fitting| fitting.min(largest));
    let epoch = course.plan.position(last).epoch + 1;
    let evaluator = Evaluator {
        task: replica.model.task.as_ref(),
        set: replica.model.task.facts().watched(),
        figures: settings.figures.as_deref(),
        ranks: exchange.ranks(),
        precision: &replica.precision,
        loader: retry.loader,
        limits: stepper.limits,
        stop,
        step_samples: course.plan.stage(last).partition.effective_batch(),
    };
    let (fault, warned) = (&mut stepper.phases.fault, &mut retry.warned_tests);
    match evaluator.run(first, step, epoch, fault, warned, followers)? {
        Evaluated::Whole(record, batch) => {
            if batch < first {
                retry.evaluation_batch = Some(batch);
            }
            Ok(Some(*record))
        }
        Evaluated::Stopped => Ok(None),
        Evaluated::Exhausted(shortages, least) => {
            let owners = owners(training);
            Err(training.stepper.limits.exhausted_error(&shortages, least, step, owners).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Generated, Split};

    fn set(samples: usize) -> EvalSet {
        let samples = Generated::new(2, samples, 1, 1, Split::Test);
        EvalSet { name: TEST.to_owned(), samples: Arc::new(samples) }
    }

    #[test]
    fn batches_of_a_program_must_divide_every_test_set() {
        for (samples, least, most) in
            [(0, 2, Some(2)), (5, 2, Some(3)), (5, 3, Some(5)), (1, 1, Some(1)), (9, 4, None)]
        {
            assert!(check_limits(&set(samples), least, most).is_ok(), "{samples} {least} {most:?}");
        }
        let error = check_limits(&set(1), 2, None);
        assert!(matches!(error, Err(TrainError::SmallTestSet { samples: 1, least: 2, .. })));
        for (least, most) in [(2, 2), (3, 4)] {
            let error = check_limits(&set(100), least, Some(most));
            assert!(matches!(error, Err(TrainError::NarrowBatches { .. })), "{least} {most}");
        }
    }
}
