//! One optimizer step, from top to bottom: load, forward, backward, reduce, decide, update, report.

use std::time::{Duration, Instant};

use dtrain_common::memory::{MemoryReport, host_memory};

use super::error::TrainError;
use super::reducer::reduce;
use super::status::Status;
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
        let micro_batches = self
            .plan
            .partition
            .for_samples(samples)
            .micro_ranges(self.group.rank());
        let lr = self.plan.schedule.lr(self.done);
        let mut waited_for_data = Duration::ZERO;

        // Load, forward, backward: the gradient of the summed loss over the step's sample count adds up in the arena.
        let mut status = Status::default();
        self.arena.zero_grad()?;
        self.buffers.begin()?;
        for range in micro_batches {
            let (batch, waited) = self.load(&mut status)?;
            waited_for_data += waited;
            let loss = self.task.loss(&batch, Mode::Train)?;
            loss.sum.f_div_scalar(samples as f64)?.f_backward()?;
            self.buffers.take(range.len() as f64 / samples as f64)?;
            status.add(loss.status);
        }
        status.stop = f64::from(u8::from(self.stop.is_asked()));

        // Reduce: afterwards every rank holds the same gradient and the same status.
        let reducing = Instant::now();
        let status = reduce(self.group, &self.arena, &self.buffers, status)?;
        let waited_for_ranks = reducing.elapsed();

        // Decide and update: the same on every rank.
        let norm = self.arena.grad_norm()? * samples as f64 / status.weight;
        let decision = decide(&status, samples, norm, self.clip);
        match decision {
            Decision::Commit { factor } => {
                if factor != 1.0 {
                    self.arena.scale_grad(factor)?;
                }
                self.optimizer.step(&self.arena, lr)?;
                self.buffers.commit()?;
            }
            Decision::Skip => {}
        }
        self.done += 1;

        // Report.
        let step_s = begun.elapsed().as_secs_f64();
        let record = StepRecord {
            step: self.done,
            epoch: position.epoch + 1,
            samples: self.plan.samples_after(self.done),
            loss: status.loss(),
            lr,
            grad_norm: norm,
            loss_scale: 1.0,
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
        status.bad_images += decoded.bad.len() as f64;
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

/// `norm` is that of the mean gradient over the samples that counted.
fn decide(status: &Status, samples: usize, norm: f64, clip: Option<f64>) -> Decision {
    if status.non_finite > 0.0 || !norm.is_finite() || status.weight == 0.0 {
        return Decision::Skip;
    }
    // Samples that could not be read have weight 0: the mean is over the others.
    let mean = if status.weight == samples as f64 {
        1.0
    } else {
        samples as f64 / status.weight
    };
    let clipped = clip.map_or(1.0, |limit| (limit / (norm + CLIP_EPS)).min(1.0));
    Decision::Commit {
        factor: mean * clipped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(weight: f64) -> Status {
        Status {
            loss_sum: 1.0,
            weight,
            ..Status::default()
        }
    }

    #[test]
    fn a_finite_step_commits_unscaled() {
        assert_eq!(
            decide(&status(8.0), 8, 3.0, None),
            Decision::Commit { factor: 1.0 }
        );
        assert_eq!(
            decide(&status(8.0), 8, 3.0, Some(5.0)),
            Decision::Commit { factor: 1.0 }
        );
    }

    #[test]
    fn unreadable_samples_leave_the_mean_of_the_others() {
        assert_eq!(
            decide(&status(6.0), 8, 3.0, None),
            Decision::Commit { factor: 8.0 / 6.0 }
        );
    }

    #[test]
    fn clipping_is_torch_s() {
        assert_eq!(
            decide(&status(8.0), 8, 4.0, Some(1.0)),
            Decision::Commit {
                factor: 1.0 / (4.0 + 1e-6)
            }
        );
    }

    #[test]
    fn what_is_not_finite_is_dropped() {
        assert_eq!(decide(&status(8.0), 8, f64::NAN, None), Decision::Skip);
        assert_eq!(decide(&status(8.0), 8, f64::INFINITY, Some(1.0)), Decision::Skip);
        assert_eq!(
            decide(
                &Status {
                    non_finite: 1.0,
                    ..status(8.0)
                },
                8,
                1.0,
                None
            ),
            Decision::Skip
        );
        assert_eq!(decide(&status(0.0), 8, f64::NAN, None), Decision::Skip);
    }
}
