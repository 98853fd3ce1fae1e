//! Distributed evaluation: every sample of the test set is counted once, whatever the number of ranks.

use std::sync::Arc;
use std::time::Instant;

use dtrain_common::batch::share;

use super::error::TrainError;
use super::status::Status;
use super::trainer::Trainer;
use crate::collectives::ReduceOp;
use crate::data::{Loader, LoaderOptions, MicroBatch};
use crate::metrics::EvalRecord;
use crate::tasks::Mode;

impl Trainer<'_> {
    /// Evaluates the whole test set: each rank its share, then one reduction of the sums.
    pub(super) fn evaluate(&mut self) -> Result<EvalRecord, TrainError> {
        let begun = Instant::now();
        let own = share(self.test_set.len(), self.group.size(), self.group.rank());
        let batch_size = self.plan.partition.micro_batch();
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
        let mut loader = Loader::start(Arc::clone(&self.test_set), options, work.into_iter())?;

        let mut status = Status::default();
        while let Some(decoded) = loader.next() {
            let batch = self.place(decoded?, &loader)?;
            status.add(tch::no_grad(|| self.task.loss(&batch, Mode::Evaluate))?.status);
        }
        let merged = status.to_tensor()?;
        self.group.all_reduce(&merged, ReduceOp::Sum)?.wait()?;
        let status = Status::merge(&merged)?;
        Ok(EvalRecord {
            step: self.done,
            epoch: self.plan.position(self.done.saturating_sub(1)).epoch + 1,
            loss: status.loss(),
            accuracy: status.accuracy(),
            samples: status.weight as u64,
            eval_ms: begun.elapsed().as_secs_f64() * 1e3,
        })
    }
}
