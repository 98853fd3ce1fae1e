//! Distributed evaluation: counts every sample of the test set once, for any number of ranks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use dtrain_common::batch::batches_of;
use dtrain_common::progress::{Progress, Unit};
use dtrain_common::trace;
use dtrain_torch_shim::rng::{self, BySample};
use rand_chacha::rand_core::Rng;
use tch::{Device, Tensor};

use super::Training;
use super::eval_sizes::check_limits;
use super::follower::Followers;
use super::retry::{SmallerSteps, owners, report_oom};
use super::share_rows::{ShareRows, names};
use super::share_values::ShareValues;
use super::shown::{Keeper, Show};
use crate::collectives::{Ranks, ReduceOp};
use crate::data::rng::{Domain, keyed};
use crate::data::{Loader, LoaderOptions, MicroBatch, too_many_bad};
use crate::faults::Fault;
use crate::memory::Phase;
use crate::metrics::{EvalRecord, Figures, MicroBatches, ShownSample};
use crate::run::error::{Result, TrainError};
use crate::step::recover::{Limits, Shortage, catch_torch_panic, retry_on_oom};
use crate::step::{Precision, Status, Tally, Warned, gather_numbers, to_device};
use crate::stop::StopFlag;
use crate::tasks::{Batch, EvalSet, Mode, Passed, RowFigures, TEST, Task, TaskError, Totals};

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
    pub(crate) show: &'a Show,
}

/// The sums over a rank's share of the test set.
struct Share<'a> {
    totals: Totals,
    /// The samples that do not count, because they or a member could not be read.
    left_out: usize,
    /// The numbers of what could not be read.
    unreadable: HashSet<u32>,
    /// For a loss over a step.
    values: ShareValues,
    rows: ShareRows,
    keeper: Option<Keeper<'a>>,
}

/// The sums over the set, and what is made of more than sums.
struct Attempted {
    status: Status,
    /// The figures that are made of rows.
    of_rows: Vec<(String, f64)>,
    /// On rank 0.
    shown: Vec<ShownSample>,
}

/// The result of an evaluation, the same on every rank.
pub(crate) enum Evaluated {
    /// The figures, and the batch size with which they were computed.
    Whole(Box<EvalRecord>, usize),
    Stopped,
    /// The ranks that had no memory for the smallest batch, and its samples.
    Exhausted(Vec<Option<Shortage>>, usize),
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
            let Attempted { status, of_rows, shown } =
                self.attempt(batch, least, fault, warned, step, followers)?;
            if status.stop > 0.0 {
                return Ok(Evaluated::Stopped);
            }
            if !status.ran_out() {
                if status.totals.weight <= 0.0 {
                    return Err(TrainError::NothingTested { set: self.set.name.clone() });
                }
                let record = EvalRecord { shown, ..self.record(&status, of_rows, step, epoch, begun) };
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

    /// Evaluates the test set in batches of these samples, the usual and the fewest. The status has the ranks without memory.
    fn attempt(
        &self,
        batch: usize,
        least: usize,
        fault: &mut Fault,
        warned: &mut Warned,
        step: u64,
        followers: &mut Followers<'_>,
    ) -> Result<Attempted> {
        let mut status = Status::empty(self.sums(), self.ranks.size());
        fault.begin(Phase::Evaluate, step, 1);
        let sums = catch_torch_panic(|| self.sum_up(batch, least, warned, followers))
            .unwrap_or_else(|error| Err(error.into()));
        fault.end();
        let (mut own, mut rows, mut unreadable) = Default::default();
        let mut keeper = None;
        match self.limits.find_shortage(sums, Phase::Evaluate)? {
            Ok(Some(share)) => {
                (status.totals, status.bad_samples) = (share.totals, share.left_out as f64);
                (own, rows, unreadable) = (share.values, share.rows, share.unreadable);
                keeper = share.keeper;
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
            return Ok(Attempted { status, of_rows: Vec::new(), shown: Vec::new() });
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
        let shown = match keeper {
            Some(keeper) => keeper.finish(&self.set.samples, self.loader, self.ranks)?,
            None => Vec::new(),
        };
        Ok(Attempted { status, of_rows, shown })
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
    ) -> Result<Option<Share<'_>>> {
        let (set, of_rows) = (Arc::clone(&self.set.samples), self.row_figures());
        let own = batches_of(set.len(), self.ranks.size(), self.ranks.rank(), batch, least);
        let mut first = own.first().map_or(0, |batch| batch.start);
        let work = own.into_iter().map(|batch| MicroBatch::of(0, batch.map(|index| index as u32)));
        let options = LoaderOptions { augment: false, ..self.loader };
        let mut loader = Loader::start(Arc::clone(&set), options, work)?;
        let mut tally = Tally::of_evaluation(self.sums(), self.limits.device)?;
        let (mut left_out, mut unreadable, mut values) = (0, HashSet::new(), ShareValues::default());
        let mut rows = match of_rows {
            Some(_) => ShareRows::new(self.task, set.len())?,
            None => ShareRows::default(),
        };
        let mut keeper = Keeper::new(self.task, &self.set, self.show);
        let progress = self.progress();
        while let Some(decoded) = loader.next() {
            if self.stop.is_requested() {
                return Ok(None);
            }
            let decoded = decoded?;
            left_out += decoded.weights.iter().filter(|weight| **weight == 0.0).count();
            unreadable.extend(decoded.unreadable());
            let mut batch = to_device(&decoded, warned, self.limits.device)?;
            loader.recycle(decoded);
            let samples = first..first + batch.samples();
            keeper.iter().for_each(|keeper| keeper.prepare(&mut batch, &samples));
            // Whatever was drawn before, an evaluation with the same batches gives the same figures.
            let seed = keyed(Domain::Evaluate, self.loader.seed, first as u64, 0).next_u64();
            rng::seed(seed)?;
            let key = keyed(Domain::BySample, self.loader.seed, 0, 1).next_u64();
            let _draws = BySample::enter(key, &samples)?;
            let passed = self.forward(|| pass(self.task, of_rows, &batch))?;
            if let Some(whole) = self.task.step_loss() {
                values.add(first, &passed.values, &batch.weights, whole)?;
            }
            if let Some(figures) = of_rows {
                rows.add(first, &passed.rows, figures)?;
            }
            tally.add_with_sums(&passed.loss)?;
            if let Some(keeper) = &mut keeper {
                self.forward(|| {
                    keeper.keep(&mut batch, &samples);
                    Ok(())
                })?;
            }
            first = samples.end;
            followers.advance();
            // The ranks have equal shares.
            progress.add((batch.weights.numel() * self.ranks.size()) as u64);
        }
        Ok(Some(Share { totals: tally.totals()?, left_out, unreadable, values, rows, keeper }))
    }

    /// Returns the progress through the set, on rank 0.
    fn progress(&self) -> Progress {
        let samples = self.set.samples.len() as u64;
        match self.ranks.rank() {
            0 => Progress::of(format!("evaluating {}", self.set.name), samples, Unit::Things("samples")),
            _ => Progress::silent(),
        }
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
            shown: Vec::new(),
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
    show: &Show,
    followers: &mut Followers<'_>,
) -> Result<Option<EvalRecord>> {
    let _evaluation = trace::span(trace::Kind::Evaluation, "evaluation");
    // The evaluation needs the memory. Without the shadow, gradients in a task use current weights.
    training.stepper.executor.drop_graphs();
    training.replica.model.set_shadow(None)?;
    training.replica.model.swap_average()?;
    let record = evaluate_live(training, stop, show, followers);
    training.replica.model.swap_average()?;
    let record = record?;
    training.replica.set_shadow()?;
    Ok(record)
}

fn evaluate_live(
    training: &mut Training<'_>,
    stop: &StopFlag,
    show: &Show,
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
        set: replica.model.task.facts().watched().first(settings.samples),
        figures: settings.figures.as_deref(),
        ranks: exchange.ranks(),
        precision: &replica.precision,
        loader: retry.loader,
        limits: stepper.limits,
        stop,
        step_samples: course.plan.stage(last).partition.effective_batch(),
        show,
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
