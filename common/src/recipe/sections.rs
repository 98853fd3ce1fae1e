//! The small sections of a recipe.

use super::kinds::{
    AUTO_OR_COUNT, AUTO_OR_FLAG, BEST, BUDGET, COMMAND, COUNT, EVERY, FLAG, Kind, NAME_LIST, PART, RATE,
    Range, SPAN, TRACED, choice,
};
use super::{
    Amp, Best, Budget, Compress, Every, LastBatch, MicroBatch, OnFailure, Recompute, Switch, TestWeights,
    TracedSteps,
};
use crate::units::{ByteSize, Span};
use crate::{entry, section};

section! {
    /// `[train]`
    Train "train" {
        /// Samples of one optimizer step, over all ranks and micro-steps.
        effective_batch: usize = 128, COUNT, experiment;
        /// Passes over the training set. Of `epochs` and `steps` at least one is set; the shorter counts.
        epochs: Option<u64> = None, COUNT;
        /// Optimizer steps.
        steps: Option<u64> = None, COUNT;
        /// Seed of the initial weights, the order of samples and their augmentation.
        seed: u64 = 1, Kind::Whole(0, i64::MAX), experiment;
        /// The use of the samples that do not fill the last step of an epoch.
        last_batch: LastBatch = LastBatch::Keep, choice(LastBatch::NAMES), experiment;
        /// Trains on this number of fixed samples, without random changes, and evaluates them: a check that the model can learn.
        #[serde(skip_serializing_if = "Option::is_none")]
        overfit: Option<usize> = None, COUNT, experiment;
        /// Ends the training when a figure no longer improves.
        #[serde(skip_serializing_if = "Option::is_none")]
        stop_early: Option<StopEarly> = None, Kind::Section(StopEarly::KEYS);
    }
}

section! {
    /// `train.stop_early`
    StopEarly "train.stop_early" {
        /// Evaluations in a row without an improvement, after which the training ends.
        patience: u64 = 5, COUNT;
        /// The figure, and whether it should rise or fall; filled in: that of `checkpoint.best`, else min loss.
        figure: Option<Best> = None, BEST;
        /// A change must be greater than this to count as an improvement.
        min_delta: f64 = 0.0, RATE;
    }
}

impl StopEarly {
    /// Returns the figure, of which a loaded recipe states one.
    pub fn figure(&self) -> Best {
        self.figure.clone().unwrap_or_else(Best::least_loss)
    }
}

impl Train {
    /// Returns the steps of one epoch over `samples` training samples; 0 if `drop` leaves none.
    pub fn steps_per_epoch(&self, samples: u64) -> u64 {
        let batch = (self.effective_batch as u64).max(1);
        match self.last_batch {
            LastBatch::Keep => samples.div_ceil(batch),
            LastBatch::Drop => samples / batch,
        }
    }

    /// Returns the steps of the run: the shorter of `epochs` and `steps`.
    pub fn total_steps(&self, steps_per_epoch: u64) -> u64 {
        let by_epochs = self.epochs.map(|epochs| epochs.saturating_mul(steps_per_epoch));
        by_epochs.into_iter().chain(self.steps).min().unwrap_or(0)
    }
}

section! {
    /// `[precision]`
    Precision "precision" {
        /// Automatic mixed precision.
        amp: Amp = Amp::Auto, choice(Amp::NAMES);
        /// First factor of the loss with float16; filled in (65536).
        loss_scale: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO);
        /// Whether a GPU computes float32 matrix products and convolutions in TF32.
        tf32: Switch = Switch::Auto, AUTO_OR_FLAG;
    }
}

section! {
    /// `[memory]`
    Memory "memory" {
        /// Largest number of samples in one forward and backward pass.
        micro_batch: MicroBatch = MicroBatch::Auto, AUTO_OR_COUNT;
        /// The most memory of a rank's tensors.
        budget: Budget = Budget::Auto, BUDGET;
        /// Whether backward recomputes segments of the model (Chen et al. 2016, arXiv 1604.06174).
        recompute: Recompute = Recompute::Auto, choice(Recompute::NAMES);
        /// Whether each epoch begins with a larger micro-batch again after an OOM halved it.
        grow: bool = false, FLAG;
        /// Whether each rank keeps only its part of the optimizer's state (ZeRO-1, Rajbhandari 2020, arXiv 1910.02054).
        shard_optimizer: bool = false, FLAG;
    }
}

section! {
    /// `[reduce]`: how gradients are summed over ranks.
    Reduce "reduce" {
        /// Size of a bucket: gradients that are reduced in one operation.
        bucket: ByteSize = ByteSize(25 << 20), Kind::Size(1 << 10);
        /// Size of the first bucket, smaller so that the reduction begins early.
        first_bucket: ByteSize = ByteSize(1 << 20), Kind::Size(1 << 10);
        /// Whether buckets are reduced during backward; otherwise after it.
        overlap: bool = true, FLAG;
        /// The data type of gradients between ranks.
        compress: Compress = Compress::None, choice(Compress::NAMES);
    }
}

entry! {
    /// `[ema]`: an exponential moving average of the weights.
    #[derive(Copy)]
    Ema {
        /// The share that the average keeps in each step; above 0 and below 1.
        decay: f64, PART;
        /// Whether it keeps less at first, so that the initial weights fade.
        #[serde(default = "yes")]
        warmup: bool, FLAG;
    }
}

fn yes() -> bool {
    true
}

section! {
    /// `[checkpoint]`
    Checkpoint "checkpoint" {
        /// Time between two checkpoints; never zero.
        every: Every = Every::Span(Span::Epochs(1.0)), EVERY;
        /// Number of newest checkpoints that stay; at least 1.
        keep: usize = 3, COUNT;
        /// The last checkpoint of every span of this length stays too.
        keep_every: Option<Span> = None, SPAN;
        /// Whether the state after every step is copied in memory, for a restart after a worker failed.
        in_memory: bool = false, FLAG;
        /// Reaction if a checkpoint cannot be written.
        on_failure: OnFailure = OnFailure::Stop, choice(OnFailure::NAMES);
        /// The figure of the best checkpoint, which stays too.
        best: Option<Best> = None, BEST;
    }
}

section! {
    /// `[evaluate]`: evaluations during the training.
    Evaluate "evaluate" {
        /// Training between two evaluations; by default between two checkpoints, as in `checkpoint.every`.
        every: Option<Span> = None, SPAN;
        /// Most samples of a batch on a rank; the default is the training's micro-batch.
        batch: MicroBatch = MicroBatch::Auto, AUTO_OR_COUNT;
        /// Names of the figures to compute besides the loss; by default all.
        figures: Option<Vec<String>> = None, NAME_LIST;
        /// The part of the time since the start or the last resume that evaluations may take; one that would take more waits for its
        /// next turn.
        share: Option<f64> = None, PART;
        /// Most samples of an evaluation, the first of the set; by default all.
        #[serde(skip_serializing_if = "Option::is_none")]
        samples: Option<usize> = None, COUNT;
    }
}

section! {
    /// `[test]`: a final test after the training.
    #[derive(Copy)]
    Test "test" {
        /// The weights to test.
        weights: TestWeights = TestWeights::Last, choice(TestWeights::NAMES);
        /// Most samples of each test set, its first; by default all.
        #[serde(skip_serializing_if = "Option::is_none")]
        samples: Option<usize> = None, COUNT;
    }
}

section! {
    /// `[log]`
    Log "log" {
        /// Steps between two printed lines; at least 1.
        every_steps: u64 = 10, Kind::Whole(1, i64::MAX);
        /// Whether the run directory gets TensorBoard's event files.
        tensorboard: bool = true, FLAG;
        /// The number of samples of an evaluation that are kept with their predictions; 0: none.
        pictures: usize = 4, Kind::Whole(0, 1000);
        /// A shell command that rank 0 starts, and that gets each line of metrics.jsonl on its standard input.
        command: Option<String> = None, COMMAND;
        /// A shell command that gets result.json on its standard input at the end of the run.
        on_end: Option<String> = None, COMMAND;
        /// The steps of a timeline of all ranks, which `dtrain trace` joins.
        trace: Option<TracedSteps> = None, TRACED;
    }
}
