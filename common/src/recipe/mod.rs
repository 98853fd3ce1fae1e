//! The recipe: what a run is, in TOML. Data, model, effective batch, learning rate and length are the user's and
//! never changed; how the machine cuts a step up is only bounded here.
//!
//! [`Recipe::load`] reads, overrides, checks and resolves in one go, so a `Recipe` that came from it is valid,
//! holds absolute paths and has every default of its optimizer and schedule filled in.

mod choices;
mod differences;
mod embedded;
mod error;
mod hints;
mod load;
mod paths;
mod schema;
mod validate;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use choices::{
    Amp, Augment, DataKind, LastBatch, MicroBatch, ModelName, OptimName, ScheduleName, Task, Workers,
};
pub use error::RecipeError;

pub use crate::lr::Scaling;
pub use crate::units::Span;

/// A whole recipe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// What is learnt.
    pub task: Task,
    /// From which images.
    pub data: Data,
    /// By which network.
    #[serde(default)]
    pub model: Model,
    /// For how long, with which batch and seed.
    #[serde(default)]
    pub train: Train,
    /// By which optimizer.
    #[serde(default)]
    pub optim: Optim,
    /// In which precision.
    #[serde(default)]
    pub precision: Precision,
    /// Within which memory.
    #[serde(default)]
    pub memory: Memory,
    /// What is kept of it, and when.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// What is written about it.
    #[serde(default)]
    pub log: Log,
}

/// `[data]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, into = "DataInFile")]
pub struct Data {
    /// Folder or generated; folder unless said otherwise.
    pub kind: DataKind,
    /// Folder that holds the training and the test folder; given and absolute for `folder`, absent for `generated`.
    pub root: Option<PathBuf>,
    /// Name of the training folder below `root`.
    pub train: String,
    /// Name of the test folder below `root`.
    pub test: String,
    /// Width and height of the network's input in pixels.
    pub image_size: usize,
    /// Loader threads of each rank.
    pub workers: Workers,
    /// Number of classes of generated data. A folder's classes are its sub-folders; this field then means nothing.
    pub classes: usize,
    /// Training images of generated data; means nothing for a folder.
    pub train_samples: usize,
    /// Test images of generated data; means nothing for a folder.
    pub test_samples: usize,
    /// Mean of each colour channel (red, green, blue; 0 to 1), subtracted from the input.
    pub mean: [f64; 3],
    /// Standard deviation of each channel, by which the input is divided.
    pub std: [f64; 3],
    /// Random changes to training images.
    pub augment: Augment,
}

/// Mean of ImageNet's training images by channel.
pub const IMAGENET_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
/// Standard deviation of ImageNet's training images by channel.
pub const IMAGENET_STD: [f64; 3] = [0.229, 0.224, 0.225];

impl Default for Data {
    fn default() -> Self {
        Self {
            kind: DataKind::Folder,
            root: None,
            train: "train".into(),
            test: "test".into(),
            image_size: 224,
            workers: Workers::Auto,
            classes: 10,
            train_samples: 2000,
            test_samples: 400,
            mean: IMAGENET_MEAN,
            std: IMAGENET_STD,
            augment: Augment::None,
        }
    }
}

/// `[data]` as it is written: only the settings that have an effect on this kind of data, since a recipe that holds
/// others is refused.
#[derive(Serialize)]
struct DataInFile {
    kind: DataKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    test: Option<String>,
    image_size: usize,
    workers: Workers,
    #[serde(skip_serializing_if = "Option::is_none")]
    classes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train_samples: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    test_samples: Option<usize>,
    mean: [f64; 3],
    std: [f64; 3],
    augment: Augment,
}

impl From<Data> for DataInFile {
    fn from(data: Data) -> Self {
        let folder = data.kind == DataKind::Folder;
        let generated = data.kind == DataKind::Generated;
        Self {
            kind: data.kind,
            root: data.root.filter(|_| folder),
            train: folder.then_some(data.train),
            test: folder.then_some(data.test),
            image_size: data.image_size,
            workers: data.workers,
            classes: generated.then_some(data.classes),
            train_samples: generated.then_some(data.train_samples),
            test_samples: generated.then_some(data.test_samples),
            mean: data.mean,
            std: data.std,
            augment: data.augment,
        }
    }
}

/// `[model]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// The network.
    pub name: ModelName,
    /// A safetensors file with torchvision's parameter names to start from; absolute. Without it the weights are drawn
    /// from the seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            name: ModelName::Resnet18,
            weights: None,
        }
    }
}

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

/// `[optim]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Optim {
    /// The optimizer.
    pub name: OptimName,
    /// The learning rate as stated; [`Recipe::learning_rate`] is the one to use.
    pub lr: f64,
    /// The effective batch for which `lr` was stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_batch: Option<usize>,
    /// How the learning rate follows the effective batch.
    pub scaling: Scaling,
    /// Decoupled weight decay; filled in by [`Recipe::load`] (0.01 for AdamW, 0 for SGD).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// AdamW: decay rates of the two moments; filled in (0.9, 0.999).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub betas: Option<[f64; 2]>,
    /// AdamW: added to the denominator; filled in (1e-8).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eps: Option<f64>,
    /// SGD: momentum; filled in (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// SGD: Nesterov's form of momentum; filled in (false).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nesterov: Option<bool>,
    /// Largest norm of the gradient over all parameters; without it gradients are used as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// The course of the learning rate.
    pub schedule: Schedule,
}

/// AdamW's learning rate where the recipe states none. SGD has no such value: its recipe must state one.
pub const DEFAULT_ADAMW_LR: f64 = 1e-3;

impl Default for Optim {
    fn default() -> Self {
        Self {
            name: OptimName::AdamW,
            lr: DEFAULT_ADAMW_LR,
            reference_batch: None,
            scaling: Scaling::None,
            weight_decay: None,
            betas: None,
            eps: None,
            momentum: None,
            nesterov: None,
            clip: None,
            schedule: Schedule::default(),
        }
    }
}

impl Optim {
    /// Writes down what the optimizer and the schedule use where nothing was stated (PyTorch's values), so that a
    /// saved recipe says it all and equals one that states the same.
    fn fill_defaults(&mut self) {
        match self.name {
            OptimName::AdamW => {
                self.weight_decay.get_or_insert(0.01);
                self.betas.get_or_insert([0.9, 0.999]);
                self.eps.get_or_insert(1e-8);
            }
            OptimName::Sgd => {
                self.weight_decay.get_or_insert(0.0);
                self.momentum.get_or_insert(0.0);
                self.nesterov.get_or_insert(false);
            }
        }
        if self.schedule.name == ScheduleName::Cosine {
            self.schedule.min_lr.get_or_insert(0.0);
        }
    }
}

/// `optim.schedule`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// The course after the warm-up.
    pub name: ScheduleName,
    /// Over this span the learning rate rises to its full value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<Span>,
    /// Cosine: where the learning rate ends; filled in (0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr: Option<f64>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            name: ScheduleName::Constant,
            warmup: None,
            min_lr: None,
        }
    }
}

/// `[precision]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Precision {
    /// Automatic mixed precision.
    pub amp: Amp,
}

impl Default for Precision {
    fn default() -> Self {
        Self { amp: Amp::Auto }
    }
}

/// `[memory]`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Largest number of samples in one forward and backward pass.
    pub micro_batch: MicroBatch,
}

/// `[checkpoint]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Checkpoint {
    /// Time between two checkpoints; never zero.
    pub every: Span,
    /// How many of the newest checkpoints stay; at least 1.
    pub keep: usize,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            every: Span::Epochs(1.0),
            keep: 3,
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

#[cfg(test)]
mod tests;
