//! The sections of a recipe that need few words: `[train]`, `[precision]`, `[memory]`, `[reduce]`, `[ema]`, `[checkpoint]`
//! and `[log]`.

use serde::{Deserialize, Serialize};

use super::auto::exact_size;
use super::{
    Amp, Best, Budget, Compress, Every, LastBatch, MicroBatch, OnFailure, Recompute, Switch, TestWeights,
};
use crate::units::{ByteSize, Span};

/// `[train]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Train {
    /// Samples of one optimizer step, over all ranks and micro-steps.
    pub effective_batch: usize,
    /// Passes over the training set. At least one of `epochs` and `steps` is given; with both the shorter counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Optimizer steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Decides the initial weights, the order of samples and their augmentation.
    pub seed: u64,
    /// What happens to the short last step of an epoch.
    pub last_batch: LastBatch,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            effective_batch: 128,
            epochs: None,
            steps: None,
            seed: 1,
            last_batch: LastBatch::Keep,
        }
    }
}

impl Train {
    /// Optimizer steps of one epoch over `samples` training samples; 0 when `drop` leaves none.
    pub fn steps_per_epoch(&self, samples: u64) -> u64 {
        let batch = (self.effective_batch as u64).max(1);
        match self.last_batch {
            LastBatch::Keep => samples.div_ceil(batch),
            LastBatch::Drop => samples / batch,
        }
    }

    /// Optimizer steps of the run: the shorter of `epochs` and `steps`.
    pub fn total_steps(&self, steps_per_epoch: u64) -> u64 {
        let by_epochs = self.epochs.map(|epochs| epochs.saturating_mul(steps_per_epoch));
        by_epochs.into_iter().chain(self.steps).min().unwrap_or(0)
    }
}

/// `[precision]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Precision {
    /// Automatic mixed precision.
    pub amp: Amp,
    /// `fp16` and `auto`: the factor by which the loss is first scaled up; filled in by [`Recipe::load`] (65536). It
    /// has an effect only where float16 is used.
    ///
    /// [`Recipe::load`]: super::Recipe::load
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Whether a GPU computes what is left in float32, its matrix products and convolutions, in TF32.
    pub tf32: Switch,
}

impl Default for Precision {
    fn default() -> Self {
        Self {
            amp: Amp::Auto,
            loss_scale: None,
            tf32: Switch::Auto,
        }
    }
}

/// `[memory]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Largest number of samples in one forward and backward pass.
    pub micro_batch: MicroBatch,
    /// The most that a rank's tensors may take.
    pub budget: Budget,
    /// Whether segments of the model are computed again in backward (Chen et al. 2016, arXiv 1604.06174).
    pub recompute: Recompute,
    /// Whether a micro-batch that was halved because memory ran out is tried larger again at the beginning of every epoch.
    pub grow: bool,
    /// Whether each rank keeps only its own part of the optimizer's state (ZeRO-1, Rajbhandari 2020, arXiv 1910.02054).
    pub shard_optimizer: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            micro_batch: MicroBatch::Auto,
            budget: Budget::Auto,
            recompute: Recompute::Auto,
            grow: false,
            shard_optimizer: false,
        }
    }
}

/// `[reduce]`: how gradients are summed over ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reduce {
    /// Size of a bucket, the piece of the gradients that is reduced in one go.
    #[serde(serialize_with = "exact_size")]
    pub bucket: ByteSize,
    /// Size of the first bucket, smaller so that the reduction begins early.
    #[serde(serialize_with = "exact_size")]
    pub first_bucket: ByteSize,
    /// Whether buckets are reduced while backward goes on; otherwise after it.
    pub overlap: bool,
    /// In what form gradients travel.
    pub compress: Compress,
}

impl Default for Reduce {
    fn default() -> Self {
        Self {
            bucket: ByteSize(25 << 20),
            first_bucket: ByteSize(1 << 20),
            overlap: true,
            compress: Compress::None,
        }
    }
}

/// `[ema]`: an exponential moving average of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ema {
    /// What the average keeps of itself in each step; above 0 and below 1.
    pub decay: f64,
    /// Whether it keeps less at first, so that it does not hold on to the initial weights.
    #[serde(default = "yes")]
    pub warmup: bool,
}

fn yes() -> bool {
    true
}

/// `[checkpoint]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Time between two checkpoints; never zero.
    pub every: Every,
    /// How many of the newest checkpoints stay; at least 1.
    pub keep: usize,
    /// The last one of every span of this length stays too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_every: Option<Span>,
    /// Whether a copy in memory is kept of the state after every step, from which the ranks go on when one of them has died.
    pub in_memory: bool,
    /// What one that cannot be written means.
    pub on_failure: OnFailure,
    /// Which one stays beside them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            every: Every::Span(Span::Epochs(1.0)),
            keep: 3,
            keep_every: None,
            in_memory: false,
            on_failure: OnFailure::Stop,
            best: None,
        }
    }
}

/// `[test]`: the test set once more when the training is over and its memory is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Test {
    /// With which weights.
    pub weights: TestWeights,
}

impl Default for Test {
    fn default() -> Self {
        Self {
            weights: TestWeights::Last,
        }
    }
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Steps between two printed lines; at least 1.
    pub every_steps: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self { every_steps: 10 }
    }
}
