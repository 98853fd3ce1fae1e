//! Distributed evaluation: every sample of the test set is counted once, whatever the number of ranks.

use std::time::Instant;

use crate::memory_report::Owners;
use dtrain_common::batch::share;
use tch::{Device, Tensor};

use super::error::TrainError;
use super::fault::Fault;
use super::feed::place_batch;
use super::precision::Precision;
use super::replay::{Exhausted, Limits, Phase, Shortage, patiently, place, shielded};
use super::status::{Status, Tally};
use super::stop::StopFlag;
use super::trainer::Trainer;
use crate::collectives::{Ranks, ReduceOp};
use crate::data::{Loader, LoaderOptions, MicroBatch};
use crate::heartbeat::Heartbeat;
use crate::memory;
use crate::metrics::{EvalRecord, Figures, MicroBatches, OomRecord};
use crate::tasks::{Mode, Task, Totals};

/// What an evaluation needs: a model without its training.
pub(crate) struct Evaluator<'a> {
    pub(crate) task: &'a dyn Task,
    pub(crate) ranks: &'a Ranks,
    pub(crate) precision: &'a Precision,
    pub(crate) loader_options: LoaderOptions,
    pub(crate) device: Device,
    pub(crate) limits: Limits,
    pub(crate) stop: &'a StopFlag,
    pub(crate) heartbeat: &'a Heartbeat,
}

/// How an evaluation has ended, the same on every rank.
pub(crate) enum Evaluated {
    /// The sums over the whole test set.
    Whole(Totals),
    /// Some rank was asked to stop.
    Stopped,
    /// Some ranks had no memory for a batch of one sample.
    Exhausted(Vec<Option<Shortage>>),
}

/// A batch that was too large.
pub(crate) struct TooLarge<'a> {
    /// By rank: where memory ran out.
    pub(crate) shortages: &'a [Option<Shortage>],
    pub(crate) from: usize,
    /// The one that is tried next.
    pub(crate) to: usize,
}

impl Evaluator<'_> {
    /// Evaluates the whole test set in batches of at most so many samples: each rank its share, then one reduction of the sums. Where
    /// memory runs out on a rank, all ranks say so through `smaller` and begin again with half the batch. Every rank calls it.
    pub(crate) fn run(
        &self,
        mut batch: usize,
        fault: &mut Fault,
        step: u64,
        mut smaller: impl FnMut(TooLarge<'_>) -> Result<(), TrainError>,
    ) -> Result<Evaluated, TrainError> {
        loop {
            let status = self.attempt(batch, fault, step)?;
            if status.stop > 0.0 {
                return Ok(Evaluated::Stopped);
            }
            if !status.ran_out() {
                return match status.totals.weight > 0.0 {
                    true => Ok(Evaluated::Whole(status.totals)),
                    false => Err(TrainError::NothingTested),
                };
            }
            if batch <= 1 {
                return Ok(Evaluated::Exhausted(status.shortages));
            }
            self.limits.free();
            smaller(TooLarge {
                shortages: &status.shortages,
                from: batch,
                to: batch / 2,
            })?;
            batch /= 2;
        }
    }

    /// The sums over the test set in batches of so many samples, and on which ranks memory ran out.
    fn attempt(&self, batch: usize, fault: &mut Fault, step: u64) -> Result<Status, TrainError> {
        let mut status = Status::blank(self.task.sums(), self.ranks.size());
        fault.begin(Phase::Evaluate, step, 1);
        let sums = shielded(|| self.sum_up(batch))
            .map_err(TrainError::from)
            .and_then(|sums| sums);
        fault.end();
        match self.limits.survive(sums, Phase::Evaluate)? {
            Ok(Some(totals)) => status.totals = totals,
            Ok(None) => status.stop = 1.0,
            Err(shortage) => {
                self.limits.free();
                status.shortages[self.ranks.rank()] = Some(shortage);
            }
        }
        let merged = patiently(Device::Cpu, || Tensor::f_from_slice(&status.values()))?;
        self.ranks.all_reduce(&merged, ReduceOp::Sum)?.wait()?;
        Ok(status.merge(&merged)?)
    }

    /// This rank's share of the test set; none where a request to stop comes before its end.
    fn sum_up(&self, batch: usize) -> Result<Option<Totals>, TrainError> {
        let test_set = self.task.test_set();
        let own = share(test_set.len(), self.ranks.size(), self.ranks.rank());
        let indices: Vec<u32> = own.map(|index| index as u32).collect();
        let work: Vec<MicroBatch> = indices
            .chunks(batch)
            .map(|part| MicroBatch {
                epoch: 0,
                indices: part.to_vec(),
            })
            .collect();
        let options = LoaderOptions {
            augment: false,
            ..self.loader_options
        };
        let mut loader = Loader::start(test_set, options, work.into_iter())?;
        let mut tally = Tally::new(self.task.sums(), self.device)?;
        while let Some(decoded) = loader.next() {
            if self.stop.is_asked() {
                return Ok(None);
            }
            let batch = place_batch(decoded?, &loader, self.device)?;
            let loss = self
                .precision
                .run(|| tch::no_grad(|| self.task.loss(&batch, Mode::Evaluate)))??;
            tally.add(&loss)?;
            self.heartbeat.beat();
        }
        Ok(Some(tally.totals()?))
    }

    /// The evaluation as it is written down.
    pub(crate) fn record(&self, totals: &Totals, step: u64, epoch: u64, begun: Instant) -> EvalRecord {
        let metrics = self.task.metrics(totals).into_iter();
        EvalRecord {
            step,
            epoch,
            loss: totals.loss(),
            metrics: Figures(metrics.map(|(name, value)| (name.to_owned(), value)).collect()),
            samples: self.task.test_set().len() as u64,
            eval_ms: begun.elapsed().as_secs_f64() * 1e3,
            best: None,
        }
    }
}

/// What ends a run whose model takes no batch of one sample.
pub(crate) fn exhausted(
    shortages: &[Option<Shortage>],
    batch: usize,
    step: u64,
    owners: Owners,
    device: Device,
) -> TrainError {
    let first = place(shortages);
    let refused = first.as_ref().and_then(|(.., first)| first.refused);
    let place = first.map_or_else(String::new, |(words, _, first)| {
        format!("{words} at step {step}: {}", first.bytes())
    });
    TrainError::OutOfMemory(Box::new(Exhausted {
        place,
        batch,
        refused,
        owners,
        predicted: false,
        elsewhere: memory::elsewhere(device),
    }))
}

/// What people are told of an evaluation in smaller batches.
pub(crate) fn in_smaller_batches(too_large: &TooLarge<'_>, step: u64) -> Option<String> {
    let (place, _, first) = place(too_large.shortages)?;
    Some(format!(
        "out of memory {place} after step {step}: {}; the test set is begun again in batches of {} instead of {}",
        first.bytes(),
        too_large.to,
        too_large.from
    ))
}

impl Trainer<'_> {
    /// Evaluates the whole test set, with the moving average of the parameters where there is one. None where some rank was asked to
    /// stop meanwhile.
    pub(super) fn evaluate(&mut self) -> Result<Option<EvalRecord>, TrainError> {
        self.settle_copy()?;
        // An evaluation has the memory for itself.
        self.graphs.forget();
        self.model.swap_average()?;
        let record = self.evaluate_live();
        self.model.swap_average()?;
        record
    }

    fn evaluate_live(&mut self) -> Result<Option<EvalRecord>, TrainError> {
        let begun = Instant::now();
        let step = self.done;
        let last = step.saturating_sub(1);
        let largest = self.plan.stage(last).partition.micro_batch();
        let first = self
            .replay
            .evaluation
            .map_or(largest, |fitting| fitting.min(largest));
        let epoch = self.plan.position(last).epoch + 1;
        let evaluator = Evaluator {
            task: self.model.task.as_ref(),
            ranks: &self.ranks,
            precision: &self.precision,
            loader_options: self.loader_options,
            device: self.device,
            limits: self.replay.limits,
            stop: &self.stop,
            heartbeat: &self.heartbeat,
        };
        let (progress, metrics, fitting) = (&self.progress, &mut self.metrics, &mut self.replay.evaluation);
        let smaller = |too_large: TooLarge<'_>| {
            *fitting = Some(too_large.to);
            if let Some(words) = in_smaller_batches(&too_large, step) {
                progress.note(words);
            }
            match (metrics.as_mut(), oom_record(&too_large, step)) {
                (Some(metrics), Some(record)) => metrics.oom(&record).map_err(TrainError::Metrics),
                _ => Ok(()),
            }
        };
        match evaluator.run(first, &mut self.replay.fault, step, smaller)? {
            Evaluated::Whole(totals) => Ok(Some(evaluator.record(&totals, step, epoch, begun))),
            Evaluated::Stopped => Ok(None),
            Evaluated::Exhausted(shortages) => Err(self.exhausted(&shortages, 1, step)),
        }
    }
}

fn oom_record(too_large: &TooLarge<'_>, step: u64) -> Option<OomRecord> {
    let (_, ranks, first) = place(too_large.shortages)?;
    Some(OomRecord {
        step,
        ranks,
        phase: first.phase.name(),
        micro_batch: MicroBatches {
            from: too_large.from,
            to: too_large.to,
        },
        grad_accum_steps: 1,
        recompute: false,
        agree_ms: first.elapsed_ms(),
    })
}
