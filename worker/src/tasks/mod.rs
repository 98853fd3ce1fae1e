//! Tasks, which turn micro-batches into losses. The engine does not know models; a task does not know ranks.

mod batch;
mod classify;
mod error;
mod images;
mod lm;
mod network;
mod numbers;
mod program;
mod program_error;
mod regress;
mod replay;
mod samples;
mod segment;

use std::sync::Arc;

use dtrain_common::recipe::Recipe;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::Tensor;

pub use batch::Batch;
pub use classify::Classify;
pub use error::TaskError;
pub use lm::Lm;
pub use program::Program;
pub use regress::Regress;
pub(crate) use replay::{Given, Passes, Replay};
pub use segment::Segment;

use crate::data::Dataset;
use crate::models::{Exported, Registry, without_random_init};

/// A micro-batch's loss and figures.
#[derive(Debug)]
pub struct Loss {
    /// The weighted sum of the losses of the samples (pixels, tokens): a scalar in the autograd graph.
    pub sum: Tensor,
    /// The sum of their weights: a scalar of any float dtype. The gradient of a step is the gradient of the
    /// sum of all `sum` divided by the sum of all `weight`, over all micro-batches, for every partition.
    pub weight: Tensor,
    /// The input of [`Task::metrics`], summed over micro-batches and ranks: float64, one-dimensional,
    /// [`Task::sums`] elements, detached.
    pub sums: Tensor,
}

/// Sums over all micro-batches and ranks, of a step or an evaluation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Totals {
    /// The sum of the losses.
    pub loss_sum: f64,
    /// The sum of the weights.
    pub weight: f64,
    /// The sums of the task's figures.
    pub sums: Vec<f64>,
}

impl Totals {
    /// Returns the mean loss.
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.weight
    }
}

/// A stage, as passed to a task.
#[derive(Debug, Clone, Copy)]
pub struct StageView<'a> {
    /// The name.
    pub name: &'a str,
    /// The number, counted from 0.
    pub number: usize,
    /// The number of stages.
    pub count: usize,
    /// The recipe with this stage's settings applied.
    pub recipe: &'a Recipe,
}

/// The purpose of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Training: records gradients; normalisation uses the batch's statistics and updates the running ones.
    Train,
    /// Evaluation: no gradients, no updates.
    Evaluate,
}

/// A task of training: data, model, loss and evaluation. It does not know ranks, micro-batches or precision;
/// the engine adds up its sums over all micro-batches.
pub trait Task {
    /// Returns the training samples.
    fn train_set(&self) -> Arc<dyn Dataset>;

    /// Returns the test samples.
    fn test_set(&self) -> Arc<dyn Dataset>;

    /// Computes the loss of a micro-batch of either set. Samples of weight 0 (`batch.weights`) could not be
    /// read: their fields are zero, and they must add nothing.
    ///
    /// # Errors
    /// If memory runs out, or the batch does not fit the model.
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError>;

    /// Returns whether only the optimizer changes trained parameters, never [`Task::loss`]. Then checkpoints
    /// copy parameters during the next step, and mixed precision casts them once per step. Otherwise training
    /// waits for the copy, and each micro-step casts. Buffers may change in any case.
    fn leaves_parameters_unchanged(&self) -> bool {
        false
    }

    /// Returns whether [`Task::loss`] does the same work on every batch of one size and weight, as the
    /// captures of `model.compile = "graph"` require. Its operations, their order and their tensors must not
    /// depend on values in the batch or on numbers that the host draws or counts. It must not read values of
    /// tensors.
    fn is_capturable(&self) -> bool {
        false
    }

    /// Returns the number of figures in [`Loss::sums`].
    fn sums(&self) -> usize {
        0
    }

    /// Computes named figures for people from the sums over a test set, besides the loss; the main one first.
    fn metrics(&self, _totals: &Totals) -> Vec<(&str, f64)> {
        Vec::new()
    }

    /// Returns the weight of a complete sample, which keeps gradients at their usual size: the number of its
    /// pixels or tokens if the loss is their sum.
    fn weight_per_sample(&self) -> f64 {
        1.0
    }

    /// Returns the smallest size of a training micro-batch.
    fn min_micro_batch(&self) -> usize {
        self.program().map_or(1, Exported::min_micro_batch)
    }

    /// Returns the exported program, if the model is one: it may be valid only for some batches.
    fn program(&self) -> Option<&Exported> {
        None
    }

    /// Returns what else, besides BatchNorm, depends on the partition of a step: a text to follow "depends on
    /// the micro-batch:". None if nothing does.
    fn micro_batch_warning(&self) -> Option<String> {
        None
    }

    /// Returns the names of buffers that [`Task::loss`] writes in training and whose values of several micro-batches cannot be
    /// joined, such as a queue. Buffers of a floating dtype change by the mean of the micro-batches' changes, weighted by
    /// samples; others take the largest value of the ranks' last micro-batches. With such names, a step of more than one
    /// micro-batch or rank is an error.
    fn undivided_buffers(&self) -> Vec<String> {
        self.program().map(Exported::undivided_buffers).unwrap_or_default()
    }

    /// Describes the data in a few words, such as "100 classes".
    fn describe(&self) -> String;

    /// Returns the number of classes; 0 without classes.
    fn classes(&self) -> usize {
        0
    }

    /// Returns the names of the classes in the order of their numbers; may be empty. Manifests of checkpoints
    /// contain them, and a run resumes only from a checkpoint with the same names.
    fn class_names(&self) -> &[String] {
        &[]
    }

    /// Begins or resumes a stage of the recipe. Called on every rank before this process's first step of each
    /// stage, including the first stage; never without `[[stage]]`. Data sets and the model's tensors must
    /// stay the same; the loss may change.
    ///
    /// # Errors
    /// Settings that the task does not support. Better check them in [`BuildTask::build`], for all stages.
    fn begin_stage(&mut self, _stage: &StageView<'_>) -> Result<(), TaskError> {
        Ok(())
    }

    /// Returns data that a saved model needs, such as a vocabulary: `extra` in the manifest of every
    /// checkpoint. A run resumes only from a checkpoint with the same data. Null for none.
    fn extra(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// The construction of a task. Rank 0 surveys first, alone; then every rank builds the same task.
pub trait BuildTask: Task + Sized {
    /// Facts about the data that rank 0 collects and sends to all ranks: lists of files, a vocabulary.
    type Survey: Serialize + DeserializeOwned;

    /// Whether [`BuildTask::build`] draws random numbers only for registered weights, and only by
    /// [`Init`](crate::models::Init). Then a resumed run skips drawing, because the checkpoint replaces the
    /// weights. Otherwise it draws as at the start.
    const DRAWS_ONLY_WEIGHTS: bool = false;

    /// Surveys the data.
    ///
    /// # Errors
    /// Data that cannot be trained on; the message names the file or key and the remedy.
    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Self::Survey, TaskError>;

    /// Builds the model into `context.registry`, with weights from torch's generator, which has the same seed on
    /// every rank.
    ///
    /// # Errors
    /// Settings that the model does not support.
    fn build(recipe: &Recipe, survey: Self::Survey, context: BuildContext<'_>) -> Result<Self, TaskError>;
}

/// Calls [`BuildTask::build`] for a model that a checkpoint fills next.
pub(crate) fn build_to_fill<T: BuildTask>(
    recipe: &Recipe,
    survey: T::Survey,
    context: BuildContext<'_>,
) -> Result<T, TaskError> {
    if T::DRAWS_ONLY_WEIGHTS {
        return without_random_init(|| T::build(recipe, survey, context));
    }
    T::build(recipe, survey, context)
}

/// Resources of a survey.
pub struct SurveyContext<'a> {
    /// The number of threads for reading files.
    pub threads: usize,
    /// Reports findings and progress to the user.
    pub report: &'a mut dyn FnMut(String),
    /// Reports warnings to the user, such as files left out.
    pub warn: &'a mut dyn FnMut(String),
}

impl SurveyContext<'_> {
    /// Runs a survey with all cores and reports to the log.
    pub(crate) fn with_log<T>(survey: impl FnOnce(&mut SurveyContext<'_>) -> T) -> T {
        survey(&mut SurveyContext {
            threads: cores(),
            report: &mut |sentence| tracing::info!("{sentence}"),
            warn: &mut |sentence| tracing::warn!("{sentence}"),
        })
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The surroundings in which a task is built.
pub struct BuildContext<'a> {
    /// The registry for the model's tensors.
    pub registry: &'a mut Registry,
    /// The number of ranks on this machine, which share its memory.
    pub local_ranks: usize,
}

#[cfg(test)]
mod tests;
