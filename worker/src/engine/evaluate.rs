//! Distributed evaluation: every sample of the test set is counted once, whatever the number of ranks.

use std::time::Instant;

use dtrain_common::batch::share;

use super::error::TrainError;
use super::status::{Status, Tally};
use super::trainer::Trainer;
use crate::collectives::ReduceOp;
use crate::data::{Loader, LoaderOptions, MicroBatch};
use crate::metrics::{EvalRecord, Figures};
use crate::tasks::Mode;

impl Trainer<'_> {
    /// Evaluates the whole test set, with the moving average of the parameters where there is one: each rank its share, then
    /// one reduction of the sums.
    pub(super) fn evaluate(&mut self) -> Result<EvalRecord, TrainError> {
        self.model.swap_average()?;
        let record = self.evaluate_live();
        self.model.swap_average()?;
        record
    }

    fn evaluate_live(&mut self) -> Result<EvalRecord, TrainError> {
        let begun = Instant::now();
        let test_set = self.model.task.test_set();
        let own = share(test_set.len(), self.ranks.size(), self.ranks.rank());
        let batch_size = self
            .plan
            .stage(self.done.saturating_sub(1))
            .partition
            .micro_batch();
        let indices: Vec<u32> = own.map(|index| index as u32).collect();
        let work: Vec<MicroBatch> = indices
            .chunks(batch_size)
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
        let status = Status {
            totals: tally.totals(task.sums())?,
            ..Status::default()
        };
        let merged = status.to_tensor()?;
        self.ranks.all_reduce(&merged, ReduceOp::Sum)?.wait()?;
        let totals = status.merge(&merged)?.totals;
        let metrics = task.metrics(&totals).into_iter();
        Ok(EvalRecord {
            step: self.done,
            epoch: self.plan.position(self.done.saturating_sub(1)).epoch + 1,
            loss: totals.loss(),
            metrics: Figures(metrics.map(|(name, value)| (name.to_owned(), value)).collect()),
            samples: self.model.task.test_set().len() as u64,
            eval_ms: begun.elapsed().as_secs_f64() * 1e3,
        })
    }
}
