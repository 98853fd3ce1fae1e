//! A model for the tests.

use super::{Cut, Mode, Prediction, Predictor, Subject};
use crate::memory::Owners;
use dtrain_common::batch::BatchError;
use dtrain_recipe::Amp;

pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;

/// A model with memory linear in the micro-batch and in the recomputed segments.
#[derive(Debug, Clone)]
pub(super) struct Machine {
    pub(super) effective_batch: usize,
    pub(super) min_micro_batch: usize,
    pub(super) max_micro_batch: Option<usize>,
    pub(super) segments: usize,
    /// Bytes of weights, of gradients and of the moving average; moments take twice that.
    pub(super) weights: u64,
    /// Bytes of activations for each sample in float32.
    pub(super) per_sample: u64,
    /// Whether operations are counted.
    pub(super) counts: bool,
    pub(super) ema: bool,
    /// Number of requested predictions.
    pub(super) predictions: usize,
    /// Bytes added to the activations of a cut, so that they are not quite linear.
    pub(super) wobble: fn(&Cut) -> u64,
    /// Percentages of activations for settings with these texts.
    pub(super) overridden: Vec<(&'static str, u64)>,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            effective_batch: 16,
            min_micro_batch: 1,
            max_micro_batch: None,
            segments: 4,
            weights: 100 * MIB,
            per_sample: 1024 * MIB,
            counts: true,
            ema: true,
            predictions: 0,
            wobble: |_| 0,
            overridden: Vec::new(),
        }
    }
}

impl Machine {
    pub(super) fn cut(ranks: usize, micro_batch: usize, recompute: usize) -> Cut {
        Cut { ranks, micro_batch, amp: Amp::Off, recompute, shard_optimizer: false }
    }

    pub(super) fn about(&self) -> Subject {
        Subject {
            model: "made-up".into(),
            parameters: self.weights / 4,
            trained: self.weights / 4,
            effective_batch: self.effective_batch,
            learning_rate: 0.001,
            min_micro_batch: self.min_micro_batch,
            max_micro_batch: self.max_micro_batch,
            group: None,
            segments: self.segments,
            depends: Vec::new(),
            undivided: None,
        }
    }

    /// Predicts without overrides: full recompute leaves a quarter of the activations, half precision half.
    pub(super) fn prediction(&self, cut: &Cut) -> Prediction {
        let full = self.per_sample * cut.micro_batch as u64 / if cut.amp == Amp::Off { 1 } else { 2 };
        let saved = full * 3 / 4 * cut.recompute as u64 / self.segments.max(1) as u64;
        let shards = if cut.shard_optimizer { cut.ranks as u64 } else { 1 };
        let owners = Owners {
            parameters: self.weights,
            gradients: self.weights,
            optimizer: 2 * self.weights / shards,
            ema: if self.ema { self.weights } else { 0 },
            buffers: 0,
            activations: full - saved + (self.wobble)(cut),
            workspace: 10 * MIB,
        };
        let forward = self.effective_batch as f64 / cut.ranks as f64 * 1e9;
        let again = forward * cut.recompute as f64 / self.segments.max(1) as f64;
        Prediction {
            cut: *cut,
            mode: Mode::Symbolic,
            peak: owners.total(),
            owners,
            flops: if self.counts { 3.0 * forward + again } else { 0.0 },
        }
    }
}

impl Predictor for Machine {
    type Error = BatchError;

    fn predict(&mut self, overrides: &[String], cut: Cut) -> Result<Prediction, BatchError> {
        self.predictions += 1;
        let mut prediction = self.prediction(&cut);
        for (text, percent) in &self.overridden {
            if overrides.iter().any(|one| one.contains(text)) {
                prediction.owners.activations = prediction.owners.activations * percent / 100;
                prediction.flops *= *percent as f64 / 100.0;
                prediction.peak = prediction.owners.total();
            }
        }
        Ok(prediction)
    }
}
