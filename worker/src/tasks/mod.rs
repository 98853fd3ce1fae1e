//! Tasks: what turns a micro-batch into a loss. The engine knows nothing of models; a task knows nothing of ranks.

mod batch;
mod classify;
mod error;
mod images;
mod lm;
mod segment;
mod torchscript;

use std::sync::Arc;

use dtrain_common::recipe::Recipe;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;

pub use batch::Batch;
pub use classify::Classify;
pub use error::TaskError;
pub use lm::Lm;
pub use segment::Segment;
pub use torchscript::TorchScript;

use crate::data::Dataset;
use crate::models::{Registry, without_drawing};

/// A micro-batch's loss, and what else is counted of it.
#[derive(Debug)]
pub struct Loss {
    /// The weighted sum of the losses of the samples (pixels, tokens): a scalar on the autograd graph.
    pub sum: Tensor,
    /// The sum of their weights: a scalar of any float dtype. The gradient of a step is that of all micro-batches' `sum`
    /// divided by all micro-batches' `weight`, whatever the partition.
    pub weight: Tensor,
    /// What [`Task::metrics`] is made of, to be added up over micro-batches and ranks: float64, one-dimensional, of
    /// [`Task::sums`] elements, detached.
    pub sums: Tensor,
}

/// The sums of an evaluation over all micro-batches and ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// Of the losses.
    pub loss_sum: f64,
    /// Of the weights.
    pub weight: f64,
    /// Of what the task counts.
    pub sums: Vec<f64>,
}

impl Totals {
    /// The mean loss.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.weight
    }
}

/// A stage as a task sees it.
#[derive(Debug, Clone, Copy)]
pub struct StageView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its number, counted from 0.
    pub number: usize,
    /// How many there are.
    pub count: usize,
    /// The recipe with the settings of this stage in the place of those that they replace.
    pub recipe: &'a Recipe,
}

/// Whether a batch teaches or tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Gradients are recorded; normalisation uses the batch's statistics and moves the running ones.
    Train,
    /// Nothing is recorded or moved.
    Evaluate,
}

/// What a run trains: data, model, loss and evaluation. It knows nothing of ranks, micro-batches or precision; what it sums
/// over a micro-batch is summed over all of them by the engine.
pub trait Task {
    /// The samples to learn from.
    fn train_set(&self) -> Arc<dyn Dataset>;

    /// The samples to test with.
    fn test_set(&self) -> Arc<dyn Dataset>;

    /// The loss of a micro-batch of either set. Samples of weight 0 (`batch.weights`) could not be read: their fields are
    /// zero, and they must add nothing.
    ///
    /// # Errors
    /// Where memory runs out, or the batch does not fit the model.
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError>;

    /// Whether [`Task::loss`] changes no parameter that is trained, so that only the optimizer does. A checkpoint then copies the
    /// parameters while the next step is computed, and in mixed precision they are cast once a step; otherwise the training waits for
    /// the copy, and casts them in every micro-step. Buffers may change in any case.
    fn keeps_parameters(&self) -> bool {
        false
    }

    /// Whether [`Task::loss`] does the same work on every batch of a size and a weight: which operations there are, in which order and
    /// on which tensors of its own depends on no value in the batch, on no number that the host draws or counts, and nothing in it
    /// reads a tensor's values. Only then can a GPU be given the captured work again, as `model.compile = "graph"` asks for.
    fn repeats(&self) -> bool {
        false
    }

    /// How many figures [`Loss::sums`] holds.
    fn sums(&self) -> usize {
        0
    }

    /// Figures for people from the sums over a whole test set, by name, beside the loss; the first is the one that counts.
    fn metrics(&self, _totals: &Totals) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// The weight of a sample of which nothing is left out, which keeps gradients at their usual size: the number of its
    /// pixels or tokens where the loss is their sum.
    fn weight_per_sample(&self) -> f64 {
        1.0
    }

    /// The fewest samples that a training micro-batch may have.
    fn min_micro_batch(&self) -> usize {
        1
    }

    /// What beside BatchNorm may depend on how a step is cut up, in words that go behind "depends on the micro-batch:";
    /// None where nothing does.
    fn micro_batch_matters(&self) -> Option<String> {
        None
    }

    /// The data in a few words, such as "100 classes".
    fn describe(&self) -> String;

    /// The number of classes, where there are any.
    fn classes(&self) -> usize {
        0
    }

    /// The names of the classes in the order of their numbers; empty where they have none. They are kept in the manifest of every
    /// checkpoint, and a run resumes only from one that has the same.
    fn class_names(&self) -> &[String] {
        &[]
    }

    /// A stage of the recipe begins, or a run is resumed within it. Called on every rank before the first step that this process
    /// takes of the stage, also of the first one; never where the recipe has no `[[stage]]`. The data sets and the model's
    /// tensors stay what they are; the loss may be another.
    ///
    /// # Errors
    /// Settings that the task does not take. Better found in [`BuildTask::build`], which sees all stages.
    fn begin_stage(&mut self, _stage: &StageView<'_>) -> Result<(), TaskError> {
        Ok(())
    }

    /// What a saved model is of no use without, such as a vocabulary: kept as `extra` in the manifest of every checkpoint. A
    /// run resumes only from a checkpoint that holds the same. Null where there is nothing.
    fn extra(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// How a task is made. Rank 0 surveys first, alone; then every rank builds the same from the same.
pub trait BuildTask: Task + Sized {
    /// What is found out about the data once and told to all ranks: lists of files, a vocabulary.
    type Survey: Serialize + DeserializeOwned;

    /// Whether [`BuildTask::build`] draws random numbers for nothing but registered weights, and by [`Init`](crate::models::Init)
    /// alone. A run that goes on from a checkpoint need not draw what the checkpoint then replaces; where something else is drawn
    /// too, it is drawn as in the beginning.
    const DRAWS_WEIGHTS_ALONE: bool = false;

    /// Looks at the data.
    ///
    /// # Errors
    /// Data that cannot be trained on; the message names the file or key and the remedy.
    fn survey(recipe: &Recipe, console: &mut Console<'_>) -> Result<Self::Survey, TaskError>;

    /// Builds the model into `site.registry`, with weights drawn from torch's generator, which is seeded alike on every rank.
    ///
    /// # Errors
    /// Settings that the model does not take.
    fn build(recipe: &Recipe, survey: Self::Survey, site: Site<'_>) -> Result<Self, TaskError>;
}

/// [`BuildTask::build`] for a model that is filled from a checkpoint next.
pub(crate) fn build_to_fill<T: BuildTask>(
    recipe: &Recipe,
    survey: T::Survey,
    site: Site<'_>,
) -> Result<T, TaskError> {
    if T::DRAWS_WEIGHTS_ALONE {
        return without_drawing(|| T::build(recipe, survey, site));
    }
    T::build(recipe, survey, site)
}

/// What a survey may use.
pub struct Console<'a> {
    /// Threads for reading files.
    pub threads: usize,
    /// Takes sentences for people: what was found, how far it is.
    pub say: &'a mut dyn FnMut(String),
    /// Takes warnings for people: what is left out, what looks wrong.
    pub warn: &'a mut dyn FnMut(String),
}

impl Console<'_> {
    /// Runs a survey with all cores, whose sentences go to the log.
    pub(crate) fn with_log<T>(survey: impl FnOnce(&mut Console<'_>) -> T) -> T {
        survey(&mut Console {
            threads: cores(),
            say: &mut |sentence| tracing::info!("{sentence}"),
            warn: &mut |sentence| tracing::warn!("{sentence}"),
        })
    }
}

/// The machine's cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Where a task is built.
pub struct Site<'a> {
    /// What the model is built into.
    pub registry: &'a mut Registry,
    /// Ranks on this machine, which share its memory.
    pub local_ranks: usize,
}

#[cfg(test)]
mod tests;
