//! The recipe: the description of a run, in TOML. dtrain never changes data, model, effective batch, learning
//! rate and length. The recipe only limits how the machine divides a step.
//!
//! A trainer decides the meaning of the task, `[data]`, `[model]` and `[custom]`; all other sections are [`General`]. A
//! trainer makes its own type of a recipe from a [`Draft`]; the launcher and the run directory see an [`AnyRecipe`].

mod any;
mod auto;
mod choices;
mod defaults;
mod differences;
mod draft;
mod effect;
mod embedded;
mod error;
pub mod hints;
pub mod keys;
pub mod kinds;
mod optim;
mod origin;
mod schedules;
mod schema;
mod sections;
mod stage;
mod texts;
mod traced;
mod validate;
mod values;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

pub use any::{AnyRecipe, Resolved};
pub use auto::{Auto, Budget, Cache, MicroBatch, Switch, Workers};
pub use choices::{
    AdjustLr, Amp, AtStageStart, Compress, Decay, Goal, LastBatch, NewtonSchulz, OnFailure, OptimName, Per,
    Recompute, Scaling, TestWeights,
};
pub use draft::{Draft, Source, read};
pub use effect::WithoutEffect;
pub use error::RecipeError;
pub use optim::{Optim, OptimGroup, one_or_many};
pub use origin::{Problem, is_stated};
pub use schedules::{FallShape, Schedule, ScheduleName};
pub use schema::{schema, table_schema};
pub use sections::{Checkpoint, Ema, Evaluate, Log, Memory, Precision, Reduce, StopEarly, Test, Train};
pub use stage::{Stage, Unfreeze};
pub use texts::{Best, Every};
pub use traced::TracedSteps;
pub use validate::{check as check_general, no_effect, without_effect};
pub use values::OwnKinds;

pub use crate::units::{ByteSize, Span};

/// The sections that mean the same for every trainer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct General {
    pub train: Train,
    pub optim: Optim,
    pub precision: Precision,
    pub memory: Memory,
    pub reduce: Reduce,
    /// The moving average of the weights; none without its section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<Ema>,
    pub checkpoint: Checkpoint,
    #[serde(skip_serializing_if = "is_default")]
    pub evaluate: Evaluate,
    /// The final test on the whole test set; none without its section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Test>,
    pub log: Log,
    /// Parts of the run with their own settings; empty for a run of one part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stage: Vec<Stage>,
    /// Settings of a user's trainer, as written; empty for every other task.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub custom: Table,
}

fn is_default(evaluate: &Evaluate) -> bool {
    *evaluate == Evaluate::default()
}

impl General {
    /// Reads the section `[custom]` as a `T`, a type of the user; a missing section is an empty one. With
    /// `#[serde(deny_unknown_fields)]` an unknown key is an error that names the key.
    pub fn custom_as<T: DeserializeOwned>(&self) -> Result<T, RecipeError> {
        serde_path_to_error::deserialize(Value::Table(self.custom.clone())).map_err(|error| {
            // The user's keys may have any characters. serde writes "." as the path of the section itself.
            let key = match error.path().to_string().as_str() {
                "." => "custom".to_owned(),
                path => format!("custom.{path}"),
            };
            RecipeError::key_only(&key, error.into_inner().message())
        })
    }
}
