//! The recipe: the description of a run, in TOML. dtrain never changes data, model, effective batch, learning
//! rate and length. The recipe only limits how the machine divides a step.
//!
//! [`Recipe::load`] reads, overrides, checks and resolves. So a loaded `Recipe` is valid, holds absolute
//! paths and has every default of its task, model, optimizer and schedule filled in.

mod auto;
mod choices;
mod custom;
mod data;
mod defaults;
mod differences;
mod effect;
mod embedded;
mod error;
mod hints;
mod keys;
mod kinds;
mod load;
mod model;
mod networks;
mod optim;
mod origin;
mod paths;
mod schedules;
mod sections;
mod serial;
mod stage;
mod target;
mod tasks;
mod texts;
mod validate;
mod values;

use serde::{Deserialize, Serialize};
use toml::Table;

pub use auto::{Auto, Budget, Cache, MicroBatch, Switch, Workers};
pub use choices::{
    Amp, AtStageStart, Augment, Compile, Compress, DataKind, Decay, Goal, LastBatch, Loss, Masks,
    MemoryFormat, OnFailure, OptimName, Orientation, Per, Recompute, Resize, Scaling, Target, TestWeights,
    Tokenizer, WeightsMode,
};
pub use data::{Data, IMAGENET_MEAN, IMAGENET_STD};
pub use error::RecipeError;
pub use model::Model;
pub use networks::{LastPart, ModelName, NetworkFacts};
pub use optim::{Optim, OptimGroup};
pub use schedules::{Schedule, ScheduleName};
pub use sections::{Checkpoint, Ema, Log, Memory, Precision, Reduce, Test, Train};
pub use stage::{Stage, Unfreeze};
pub use tasks::{Task, TaskFacts};
pub use texts::{BatchNorm, Best, Every};

pub use crate::units::{ByteSize, Span};

/// A whole recipe. Settings without effect have their defaults and are not written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Recipe {
    pub task: Task,
    #[serde(default)]
    pub data: Data,
    #[serde(default)]
    pub model: Model,
    #[serde(default)]
    pub train: Train,
    #[serde(default)]
    pub optim: Optim,
    #[serde(default)]
    pub precision: Precision,
    #[serde(default)]
    pub memory: Memory,
    #[serde(default)]
    pub reduce: Reduce,
    /// The moving average of the weights; none without its section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema: Option<Ema>,
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// The final test on the whole test set; none without its section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<Test>,
    #[serde(default)]
    pub log: Log,
    /// Parts of the run with their own settings; empty for a run of one part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stage: Vec<Stage>,
    /// Settings of a user's trainer, as written; empty for every other task.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub custom: Table,
}

#[cfg(test)]
mod tests;
