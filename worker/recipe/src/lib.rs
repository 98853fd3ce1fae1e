//! The recipe of dtrain's trainer, and of trainers made with its library: the general settings of
//! [`dtrain_common::recipe`] with tasks, networks, `[data]` and `[model]`. No tensors: what a recipe means is known without
//! libtorch.
//!
//! [`Recipe::load`] reads, overrides, checks and resolves. So a loaded `Recipe` is valid, holds absolute paths and has every
//! default of its task, model, optimizer and schedule filled in.

mod batchnorm;
mod by_source;
pub mod changes;
mod choices;
mod column_kind;
mod columns;
mod data;
mod data_kind;
mod defaults;
mod effect;
mod episodes;
pub mod figures;
mod imported;
mod kinds;
mod load;
mod lora;
mod loss;
pub mod losses;
mod mask_colors;
pub mod mixes;
mod model;
mod named;
mod networks;
mod no_data;
mod own_programs;
mod pair;
mod paths;
mod resolve;
pub mod sample_losses;
mod samplers;
mod sets;
mod sources;
mod target;
mod tasks;
mod tokenizer;
mod validate;

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};

use dtrain_common::batch::{BatchError, Partition};

pub use batchnorm::BatchNorm;
pub use changes::Change;
pub use choices::{
    Augment, Compile, Decode, Documents, Interpolation, Join, Masks, MemoryFormat, Orientation, Resize,
    Separator, Target, Threshold, TokenType, Unannotated, WeightsMode,
};
pub use column_kind::ColumnKind;
pub use columns::FieldColumns;
pub use data::{Data, IMAGENET_MEAN, IMAGENET_STD};
pub use data_kind::DataKind;
pub use dtrain_common::recipe::{
    AdjustLr, Amp, AnyRecipe, AtStageStart, Auto, Best, Budget, ByteSize, Cache, Checkpoint, Compress, Decay,
    Ema, Evaluate, Every, General, Goal, LastBatch, Log, Memory, MicroBatch, NewtonSchulz, OnFailure, Optim,
    OptimGroup, OptimName, Per, Precision, RecipeError, Recompute, Reduce, Resolved, Scaling, Schedule,
    ScheduleName, Span, Stage, StopEarly, Switch, Test, TestWeights, TracedSteps, Train, Unfreeze, Workers,
};
pub use episodes::Episodes;
pub use figures::Figure;
pub use imported::lines_of_import;
pub use lora::{Frozen, Lora};
pub use loss::{Loss, LossTerm};
pub use losses::StepLoss;
pub use mask_colors::{ClassColor, MaskColors};
pub use mixes::{Mix, MixBy};
pub use model::Model;
pub use networks::{LastPart, ModelName, NetworkFacts};
pub use no_data::{NoData, NoDataWord};
pub use pair::{NamePattern, Pair};
pub use sample_losses::{ClassWeights, SampleLoss};
pub use samplers::Sampler;
pub use sets::{Val, ValSet, check_test_name};
pub use sources::Source;
pub use tasks::{Task, TaskFacts};
pub use tokenizer::Tokenizer;

/// A whole recipe.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// The learning task.
    pub task: Task,
    /// The samples.
    pub data: Data,
    /// The network.
    pub model: Model,
    /// The settings of every trainer, which are also fields of the recipe.
    pub general: General,
    /// The keys that the recipe leaves to the model's file.
    pub of_file: Vec<String>,
}

impl Recipe {
    /// Returns the recipe of one stage, counted from 0, as a separate run; beyond the last stage a copy of
    /// this recipe. Frozen parameters are not included: they depend on the stages before.
    pub fn of_stage(&self, number: usize) -> Self {
        let mut recipe = self.clone();
        recipe.general = self.general.of_stage(number);
        if let Some(loss) = self.loss_of_stage(number) {
            recipe.model.loss = loss;
        }
        recipe
    }

    /// Returns the loss that a stage, counted from 0, states.
    fn loss_of_stage(&self, number: usize) -> Option<Loss> {
        Loss::try_from(self.stage.get(number)?.loss.clone()?).ok()
    }

    /// Returns the key that states the loss of a stage, counted from 0.
    pub fn loss_key(&self, stage: usize) -> String {
        match self.stage.get(stage) {
            Some(Stage { loss: Some(_), .. }) => format!("stage[{stage}].loss"),
            _ => "model.loss".to_owned(),
        }
    }

    /// Divides a step among `ranks` into micro-batches, in the groups that BatchNorm normalises.
    pub fn partition(&self, ranks: usize, micro_batch: Option<usize>) -> Result<Partition, BatchError> {
        Partition::in_groups(self.train.effective_batch, ranks, micro_batch, self.model.batchnorm.group())
    }

    /// Returns the name of the network for files, manifests and messages: the model's name, else that of the exported
    /// program's file, else the task's.
    pub fn model_name(&self) -> String {
        let file = self.program().and_then(|file| file.file_name()).map(|name| name.to_string_lossy());
        let named = self.model.name.map(|name| name.as_str().into()).or(file);
        named.map_or_else(|| self.task.as_str().to_owned(), Cow::into_owned)
    }
}

/// Equal settings are equal, wherever they come from.
impl PartialEq for Recipe {
    fn eq(&self, other: &Self) -> bool {
        let Self { task, data, model, general, of_file: _ } = self;
        (task, data, model, general) == (&other.task, &other.data, &other.model, &other.general)
    }
}

/// A recipe has the general settings and their arithmetic.
impl Deref for Recipe {
    type Target = General;

    fn deref(&self) -> &General {
        &self.general
    }
}

impl DerefMut for Recipe {
    fn deref_mut(&mut self) -> &mut General {
        &mut self.general
    }
}

#[cfg(test)]
mod tests;
