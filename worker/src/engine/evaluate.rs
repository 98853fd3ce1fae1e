//! Distributed evaluation: every sample of the test set is counted once, whatever the number of ranks.

use std::time::Instant;

use dtrain_common::batch::share;
use tch::{Device, Tensor};

use super::error::TrainError;
use super::replay::{Phase, Shortage, patiently, place, shielded};
use super::status::{Status, Tally};
use super::trainer::Trainer;
use crate::collectives::ReduceOp;
use crate::data::{Loader, LoaderOptions, MicroBatch};
use crate::metrics::{EvalRecord, Figures, MicroBatches, OomRecord};
use crate::tasks::{Mode, Totals};

impl Trainer<'_> {
    /// Evaluates the whole test set, with the moving average of the parameters where there is one: each rank its share, then
    /// one reduction of the sums. Where memory runs out on a rank, all ranks begin again with half the batch.
    pub(super) fn evaluate(&mut self) -> Result<EvalRecord, TrainError> {
        self.model.swap_average()?;
        let record = self.evaluate_live();
        self.model.swap_average()?;
        record
    }

    fn evaluate_live(&mut self) -> Result<EvalRecord, TrainError> {
        let begun = Instant::now();
        let status = loop {
            let last = self.done.saturating_sub(1);
            let largest = self.plan.stage(last).partition.micro_batch();
            let batch = self
                .replay
                .evaluation
                .map_or(largest, |fitting| fitting.min(largest));
            let status = self.evaluate_in(batch)?;
            if !status.ran_out() {
                break status;
            }
            if batch <= 1 {
                return Err(self.exhausted(&status.shortages, batch, self.done));
            }
            self.evaluate_smaller(&status.shortages, batch)?;
        };
        let totals = status.totals;
        let metrics = self.model.task.metrics(&totals).into_iter();
        Ok(EvalRecord {
            step: self.done,
            epoch: self.plan.position(self.done.saturating_sub(1)).epoch + 1,
            loss: totals.loss(),
            metrics: Figures(metrics.map(|(name, value)| (name.to_owned(), value)).collect()),
            samples: self.model.task.test_set().len() as u64,
            eval_ms: begun.elapsed().as_secs_f64() * 1e3,
            best: None,
        })
    }

    /// The sums over the test set in batches of so many samples, and on which ranks memory ran out.
    fn evaluate_in(&mut self, batch: usize) -> Result<Status, TrainError> {
        let mut status = Status::blank(self.model.task.sums(), self.ranks.size());
        self.replay.fault.begin(Phase::Evaluate, self.done, 1);
        let sums = shielded(|| self.sum_up(batch))
            .map_err(TrainError::from)
            .and_then(|sums| sums);
        self.replay.fault.end();
        match self.replay.survive(sums, Phase::Evaluate)? {
            Ok(totals) => status.totals = totals,
            Err(shortage) => {
                self.replay.free();
                status.shortages[self.ranks.rank()] = Some(shortage);
            }
        }
        let merged = patiently(Device::Cpu, || Tensor::f_from_slice(&status.values()))?;
        self.ranks.all_reduce(&merged, ReduceOp::Sum)?.wait()?;
        Ok(status.merge(&merged)?)
    }

    /// This rank's share of the test set.
    fn sum_up(&self, batch: usize) -> Result<Totals, TrainError> {
        let test_set = self.model.task.test_set();
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
        let task = self.model.task.as_ref();
        let mut tally = Tally::default();
        while let Some(decoded) = loader.next() {
            let batch = self.place(decoded?, &loader)?;
            let loss = self
                .precision
                .run(|| tch::no_grad(|| task.loss(&batch, Mode::Evaluate)))??;
            tally.add(&loss)?;
            self.heartbeat.beat();
        }
        Ok(tally.totals(task.sums())?)
    }

    /// Halves the batch of this and later evaluations, on all ranks.
    fn evaluate_smaller(&mut self, shortages: &[Option<Shortage>], batch: usize) -> Result<(), TrainError> {
        self.replay.free();
        let smaller = batch / 2;
        self.replay.evaluation = Some(smaller);
        let Some((place, ranks, first)) = place(shortages) else {
            return Ok(());
        };
        let step = self.done;
        self.progress.note(format!(
            "out of memory {place} after step {step}: {}; the test set is begun again in batches of {smaller} instead of {batch}",
            first.bytes()
        ));
        let record = OomRecord {
            step,
            ranks,
            phase: first.phase.name(),
            micro_batch: MicroBatches {
                from: batch,
                to: smaller,
            },
            grad_accum_steps: 1,
            recompute: false,
            agree_ms: first.elapsed_ms(),
        };
        match &mut self.metrics {
            Some(metrics) => metrics.oom(&record).map_err(TrainError::Metrics),
            None => Ok(()),
        }
    }
}
