//! The plan of a run: how many steps, which samples in each, and how they are cut up over the ranks. Pure arithmetic.

mod needs;

use std::fmt;
use std::ops::Range;

use dtrain_common::batch::{BatchError, Partition};
use dtrain_common::recipe::{LastBatch, Recipe};
use serde::Serialize;
use thiserror::Error;

pub use needs::{BatchNorms, Needs};

use super::schedule::Schedule;
use crate::data::{MicroBatch, epoch_order};

/// A run's plan, the same on every rank.
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// How a full step is cut up.
    pub partition: Partition,
    /// Samples of the training set.
    pub train_samples: u64,
    /// Steps of one epoch.
    pub steps_per_epoch: u64,
    /// Steps of the run.
    pub total_steps: u64,
    /// The learning rate of every step.
    pub schedule: Schedule,
    /// A checkpoint is written, after an evaluation, every so many steps and at the end.
    pub checkpoint_every: u64,
    /// What makes the result depend on the partition, a sentence each: to be said before the run, and kept with it.
    pub warnings: Vec<String>,
    seed: u64,
    last_batch: LastBatch,
    needs: Needs,
}

/// A plan that cannot be made.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The effective batch cannot be cut up.
    #[error("train.effective_batch: {0}")]
    Batch(#[from] BatchError),
    /// An epoch has no step.
    #[error(
        "the training set has {samples} samples, fewer than train.effective_batch = {effective_batch}, and \
         train.last_batch = \"drop\" leaves no step; lower the batch or keep the last one"
    )]
    NoSteps {
        /// Samples of the training set.
        samples: u64,
        /// The recipe's batch.
        effective_batch: usize,
    },
    /// The warm-up is longer than the run.
    #[error(
        "optim.schedule.warmup is {warmup} steps, but the run has {total} only; shorten it or lengthen the run"
    )]
    Warmup {
        /// Steps of warm-up.
        warmup: u64,
        /// Steps of the run.
        total: u64,
    },
    /// A micro-batch is too small for the model.
    #[error(
        "a micro-batch of {smallest} sample would occur ({partition}), but BatchNorm needs at least {least} samples where \
         the last feature map is one pixel: raise train.effective_batch or memory.micro_batch, use fewer ranks, larger \
         images{remedy}"
    )]
    MicroBatch {
        /// The smallest micro-batch of the plan.
        smallest: usize,
        /// The model's least.
        least: usize,
        /// Where it occurs.
        partition: Partition,
        /// A further remedy where it is the short last step.
        remedy: &'static str,
    },
    /// Forward passes that meet, and a rank that would take fewer of them than the others.
    #[error(
        "with model.batchnorm = \"synced\" all ranks take the same number of micro-steps, but of {partition} some rank has \
         fewer samples than another has micro-steps: set another train.effective_batch or a larger memory.micro_batch, use \
         fewer ranks{remedy}"
    )]
    Uneven {
        /// Where it occurs.
        partition: Partition,
        /// A further remedy where it is the short last step.
        remedy: &'static str,
    },
}

/// Where a run stands: between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The epoch of the next step, counted from 0.
    pub epoch: u64,
    /// The next step within that epoch, counted from 0.
    pub step_in_epoch: u64,
}

impl RunPlan {
    /// The plan of `recipe` for `ranks` processes and a training set of `train_samples`, on a model that needs this.
    ///
    /// # Errors
    /// Where the figures do not go together; each error names the key and the remedy.
    pub fn new(recipe: &Recipe, ranks: usize, train_samples: u64, needs: &Needs) -> Result<Self, PlanError> {
        let train = &recipe.train;
        let partition = Partition::new(train.effective_batch, ranks, recipe.memory.micro_batch.limit())?;
        let steps_per_epoch = train.steps_per_epoch(train_samples);
        if steps_per_epoch == 0 {
            let effective_batch = train.effective_batch;
            return Err(PlanError::NoSteps {
                samples: train_samples,
                effective_batch,
            });
        }
        let total_steps = train.total_steps(steps_per_epoch);
        let schedule = &recipe.optim.schedule;
        let warmup_steps = schedule.warmup.map_or(0, |span| span.steps(steps_per_epoch));
        if warmup_steps > total_steps {
            return Err(PlanError::Warmup {
                warmup: warmup_steps,
                total: total_steps,
            });
        }
        let mut plan = Self {
            partition,
            train_samples,
            steps_per_epoch,
            total_steps,
            schedule: Schedule::of(recipe, warmup_steps, steps_per_epoch, total_steps),
            checkpoint_every: recipe.checkpoint.every.steps(steps_per_epoch).max(1),
            warnings: Vec::new(),
            seed: train.seed,
            last_batch: train.last_batch,
            needs: needs.clone(),
        };
        plan.check()?;
        plan.warnings = needs.warnings(&plan.step_partition(0));
        Ok(plan)
    }

    /// The same steps of the same samples, in the largest micro-batches of at most `most` samples that the model takes; None
    /// where it takes none so small.
    pub fn in_micro_batches(&self, most: usize) -> Option<Self> {
        let (samples, ranks) = (self.partition.effective_batch(), self.partition.ranks());
        (1..=most).rev().find_map(|limit| {
            let plan = Self {
                partition: Partition::new(samples, ranks, Some(limit)).ok()?,
                ..self.clone()
            };
            plan.check().is_ok().then_some(plan)
        })
    }

    /// Whether the model takes the micro-batches of every step.
    fn check(&self) -> Result<(), PlanError> {
        self.needs.check(&self.step_partition(0), "")?;
        if self.total_steps >= self.steps_per_epoch {
            let last = self.step_partition(self.steps_per_epoch - 1);
            self.needs.check(&last, ", or set train.last_batch = \"drop\"")?;
        }
        Ok(())
    }

    /// How the step with this number within its epoch is cut up.
    fn step_partition(&self, step_in_epoch: u64) -> Partition {
        self.partition.for_samples(self.step_samples(step_in_epoch))
    }

    /// Where a run stands after `done` steps.
    pub fn position(&self, done: u64) -> Position {
        Position {
            epoch: done / self.steps_per_epoch,
            step_in_epoch: done % self.steps_per_epoch,
        }
    }

    /// The number of samples of the step with this number within its epoch.
    pub fn step_samples(&self, step_in_epoch: u64) -> usize {
        let batch = self.partition.effective_batch() as u64;
        let left = self.train_samples.saturating_sub(step_in_epoch * batch);
        left.min(batch) as usize
    }

    /// The micro-batches of `rank` in a step of so many samples, as positions within the step.
    pub fn micro_ranges(&self, samples: usize, rank: usize) -> Vec<Range<usize>> {
        self.partition.for_samples(samples).micro_ranges(rank)
    }

    /// Samples seen by all ranks after `done` steps.
    pub fn samples_after(&self, done: u64) -> u64 {
        let Position { epoch, step_in_epoch } = self.position(done);
        let batch = self.partition.effective_batch() as u64;
        let per_epoch = match self.last_batch {
            LastBatch::Keep => self.train_samples,
            LastBatch::Drop => self.steps_per_epoch * batch,
        };
        epoch * per_epoch + (step_in_epoch * batch).min(per_epoch)
    }

    /// Epochs of the run, the last one possibly cut short.
    pub fn epochs(&self) -> u64 {
        self.total_steps.div_ceil(self.steps_per_epoch)
    }

    /// The micro-batches of `rank`, from the step after `done` to the end of the run. They depend on the seed alone: the
    /// samples of a step are the same whatever the number of ranks and the micro-batch.
    pub fn micro_batches(&self, rank: usize, done: u64) -> impl Iterator<Item = MicroBatch> + Send + 'static {
        let plan = self.clone();
        let mut current: Option<(u64, Vec<u32>)> = None;
        (done..self.total_steps).flat_map(move |step| {
            let Position { epoch, step_in_epoch } = plan.position(step);
            let order = match current.take() {
                Some((of, order)) if of == epoch => order,
                _ => epoch_order(plan.train_samples as usize, plan.seed, epoch),
            };
            let first = step_in_epoch as usize * plan.partition.effective_batch();
            let samples = plan.step_samples(step_in_epoch);
            let step_indices = &order[first..first + samples];
            let ranges = plan.micro_ranges(samples, rank);
            let work: Vec<MicroBatch> = ranges
                .into_iter()
                .map(|range| MicroBatch {
                    epoch,
                    indices: step_indices[range].to_vec(),
                })
                .collect();
            current = Some((epoch, order));
            work
        })
    }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "effective batch {}; {} steps per epoch, {} in all; learning rate {:.4e}",
            self.partition, self.steps_per_epoch, self.total_steps, self.schedule.peak
        )
    }
}

/// RUN_DIR/plan.json: the partition chosen, and the memory that is certain before the first step.
#[derive(Debug, Serialize)]
pub struct PlanFile {
    /// Samples per optimizer step, over all ranks.
    pub effective_batch: usize,
    /// Ranks.
    pub nproc: usize,
    /// The largest micro-batch.
    pub micro_batch: usize,
    /// Micro-steps per step of the busiest rank.
    pub grad_accum_steps: usize,
    /// The cutting in words.
    pub partition: String,
    /// What makes the result depend on the cutting, a sentence each.
    pub warnings: Vec<String>,
    /// Where the tensors lie.
    pub device: String,
    /// The learning rate after scaling.
    pub learning_rate: f64,
    /// Steps of warm-up.
    pub warmup_steps: u64,
    /// Steps of one epoch.
    pub steps_per_epoch: u64,
    /// Steps of the run.
    pub total_steps: u64,
    /// Samples of the training and test sets.
    pub train_samples: u64,
    /// Samples of the test set.
    pub test_samples: u64,
    /// Trainable parameters.
    pub parameters: u64,
    /// Predicted, not measured: bytes per rank by owner. Activations are not predicted in this version.
    pub predicted_bytes: dtrain_common::memory::StateBytes,
}

#[cfg(test)]
mod tests;
