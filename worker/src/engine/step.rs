//! One optimizer step, from top to bottom: load, forward, backward, reduce, decide, update, report.

use std::time::{Duration, Instant};

use dtrain_common::memory::{MemoryReport, host_memory};

use super::error::TrainError;
use super::status::{Status, Tally};
use super::trainer::Trainer;
use crate::data::{self, Loader};
use crate::metrics::{StepRecord, WaitMs};
use crate::tasks::{Batch, Mode};

/// What the ranks have decided about a step from the figures that all of them share.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Decision {
    /// Update with the gradient multiplied by this factor.
    Commit { factor: f64 },
    /// Leave parameters and buffers as they are.
    Skip,
}

/// torch's clip_grad_norm_ divides by the norm and this.
const CLIP_EPS: f64 = 1e-6;

impl Trainer<'_> {
    /// Takes the step that follows `self.done` others, and says how it went.
    pub(super) fn step(&mut self) -> Result<(StepRecord, Status), TrainError> {
        let begun = Instant::now();
        let position = self.plan.position(self.done);
        let samples = self.plan.step_samples(position.step_in_epoch);
        let micro_batches = self.plan.micro_ranges(samples, self.ranks.rank());
        let lr = self.plan.schedule.lr(self.done);
        let loss_scale = self.precision.loss_scale();
        // The weight of the step if nothing is left out of it; what is left out is made up for below.
        let expected = samples as f64 * self.model.task.weight_per_sample();

        // Load, forward, backward: the gradient of the summed loss, over the expected weight, adds up in the arena.
        let mut waited_for_data = Duration::ZERO;
        let mut status = Status::default();
        let mut tally = Tally::default();
        self.model.buffers.begin()?;
        self.reducer.begin()?;
        if micro_batches.is_empty() {
            self.reducer.arm();
        }
        for (index, range) in micro_batches.iter().enumerate() {
            let (batch, waited) = self.load(&mut status)?;
            waited_for_data += waited;
            let loss = self
                .precision
                .run(|| self.model.task.loss(&batch, Mode::Train))??;
            if index + 1 == micro_batches.len() {
                self.reducer.arm();
            }
            let scaled = loss.sum.f_mul_scalar(loss_scale / expected)?;
            self.model.recompute.backward(&scaled)?;
            self.model.buffers.take(range.len() as f64 / samples as f64)?;
            tally.add(&loss)?;
        }
        status.totals = tally.totals(self.model.task.sums())?;
        status.stop = f64::from(u8::from(self.stop.is_asked()));

        // Reduce: afterwards every rank holds the same gradient and the same status.
        let reducing = Instant::now();
        let status = self.reducer.finish(&self.model.buffers, status)?;
        let waited_for_ranks = reducing.elapsed();

        // Decide: the same on every rank.
        let finite = self.precision.unscale(&self.model.arena, &self.reducer)?;
        let missing = expected / status.totals.weight;
        let norm = self.reducer.norm(&self.model.arena)? * missing;
        let decision = match finite {
            true => decide(&status, missing, norm, self.clip),
            false => Decision::Skip,
        };
        self.precision.update(finite)?;

        // Update.
        if let Decision::Commit { factor } = decision {
            if factor != 1.0 {
                self.model.arena.scale_grad(factor)?;
            }
            self.model.optimizer.step(&self.model.arena, lr, &status.used())?;
            self.reducer.gather(&self.model.arena)?;
            self.model.buffers.commit()?;
            self.model.update_average()?;
        }
        self.done += 1;

        // Report.
        let step_s = begun.elapsed().as_secs_f64();
        let record = StepRecord {
            step: self.done,
            epoch: position.epoch + 1,
            samples: self.plan.samples_after(self.done),
            loss: status.totals.loss(),
            lr,
            grad_norm: norm,
            loss_scale,
            samples_per_s: samples as f64 / step_s,
            step_ms: step_s * 1e3,
            wait_ms: WaitMs {
                data: waited_for_data.as_secs_f64() * 1e3,
                comm: waited_for_ranks.as_secs_f64() * 1e3,
            },
            memory: self.memory(),
            skipped: decision == Decision::Skip,
        };
        Ok((record, status))
    }

    /// The next micro-batch on the device, and how long it was waited for.
    fn load(&mut self, status: &mut Status) -> Result<(Batch, Duration), TrainError> {
        let asked = Instant::now();
        let decoded = self.batches.next().ok_or(TrainError::LoaderEnded)??;
        let waited = asked.elapsed();
        status.bad_samples += decoded.bad.len() as f64;
        Ok((self.place(decoded, &self.batches)?, waited))
    }

    /// A decoded batch on the device; what could not be read is named, and the memory goes back to its loader.
    pub(super) fn place(&self, decoded: data::Batch, loader: &Loader) -> Result<Batch, TrainError> {
        for bad in &decoded.bad {
            tracing::warn!("{} cannot be read and is left out: {}", bad.path, bad.reason);
        }
        let batch = Batch::new(&decoded, self.device)?;
        loader.recycle(decoded);
        Ok(batch)
    }

    fn memory(&self) -> MemoryReport {
        // /proc is always there on Linux; a failure would only blank the figure.
        host_memory().unwrap_or_default()
    }
}

/// `norm` is that of the mean gradient over the weight that counted; `missing` is the expected weight over that one.
fn decide(status: &Status, missing: f64, norm: f64, clip: Option<f64>) -> Decision {
    let nothing = status.totals.weight == 0.0;
    if nothing || !status.totals.loss_sum.is_finite() || !norm.is_finite() {
        return Decision::Skip;
    }
    let clipped = clip.map_or(1.0, |limit| (limit / (norm + CLIP_EPS)).min(1.0));
    Decision::Commit {
        factor: missing * clipped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::Totals;

    fn status(loss_sum: f64, weight: f64) -> Status {
        Status {
            totals: Totals {
                loss_sum,
                weight,
                sums: Vec::new(),
            },
            ..Status::default()
        }
    }

    #[test]
    fn a_finite_step_commits_unscaled() {
        let commit = Decision::Commit { factor: 1.0 };
        assert_eq!(decide(&status(1.0, 8.0), 1.0, 3.0, None), commit);
        assert_eq!(decide(&status(1.0, 8.0), 1.0, 3.0, Some(5.0)), commit);
    }

    #[test]
    fn unreadable_samples_leave_the_mean_of_the_others() {
        assert_eq!(
            decide(&status(1.0, 6.0), 8.0 / 6.0, 3.0, None),
            Decision::Commit { factor: 8.0 / 6.0 }
        );
    }

    #[test]
    fn clipping_is_torch_s() {
        assert_eq!(
            decide(&status(1.0, 8.0), 1.0, 4.0, Some(1.0)),
            Decision::Commit {
                factor: 1.0 / (4.0 + 1e-6)
            }
        );
    }

    #[test]
    fn what_is_not_finite_is_dropped() {
        let skip = Decision::Skip;
        assert_eq!(decide(&status(1.0, 8.0), 1.0, f64::NAN, None), skip);
        assert_eq!(decide(&status(1.0, 8.0), 1.0, f64::INFINITY, Some(1.0)), skip);
        assert_eq!(decide(&status(f64::NAN, 8.0), 1.0, 1.0, None), skip);
        assert_eq!(decide(&status(0.0, 0.0), f64::INFINITY, f64::NAN, None), skip);
    }
}
