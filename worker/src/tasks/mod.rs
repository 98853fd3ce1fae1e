//! Tasks, which turn micro-batches into losses. The engine does not know models; a task does not know ranks.

mod batch;
mod classify;
mod details;
mod error;
mod facts;
mod figures;
mod forward;
mod lm;
mod mixed;
mod network;
mod output_losses;
mod overfit;
mod own;
pub mod predict;
mod program;
mod program_classes;
mod program_counted;
mod program_error;
mod program_losses;
mod program_predict;
mod program_predicted;
mod regress;
mod replay;
mod row_figures;
mod samples;
mod segment;
mod step_loss;
mod terms;

use dtrain_common::recipe::kinds::Key;
use dtrain_recipe::{self as recipe, Recipe};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use batch::Batch;
pub use classify::Classify;
pub use details::{Checked, Details, Progress, SetKind};
pub use dtrain_parts::Loss;
pub use error::TaskError;
pub use facts::{BatchSizes, Facts};
pub(crate) use facts::{EvalSet, TEST};
pub use forward::Forward;
pub use lm::Lm;
pub(crate) use overfit::Overfit;
pub(crate) use own::OF_PROGRAM;
pub use predict::{Predict, Unlabelled};
pub use program::Program;
pub use regress::Regress;
pub(crate) use replay::{Given, Passes, Replay};
pub use row_figures::{ByRows, BySums, Passed, RowFigures};
pub(crate) use samples::{check_rest, has_splits, split, split_names, unchanged_sets};
pub use segment::Segment;
pub use step_loss::{StepLoss, StepValue};

use crate::data::CacheBudget;
use crate::models::{Registry, without_random_init};

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

/// Begins a stage of the recipe, counted from 0, outside of a run. Does nothing for a recipe without stages.
///
/// # Errors
/// As [`Task::begin_stage`].
pub(crate) fn begin_stage(task: &mut dyn Task, recipe: &Recipe, number: usize) -> Result<(), TaskError> {
    let Some(stage) = recipe.stage.get(number) else { return Ok(()) };
    let alone = recipe.of_stage(number);
    task.begin_stage(&StageView { name: &stage.name, number, count: recipe.stage.len(), recipe: &alone })
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
    /// Returns what the engine knows of the task; always the same.
    fn facts(&self) -> &Facts;

    /// Computes the loss of a micro-batch of either set. Samples of weight 0 (`batch.weights`) could not be
    /// read: their fields are zero, and they must add nothing.
    ///
    /// # Errors
    /// If memory runs out, or the batch does not fit the model.
    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError>;

    /// Returns the part of the loss that needs all samples of a step; None without such a part. Then the engine calls
    /// [`StepLoss::forward`] in place of [`Task::loss`].
    fn step_loss(&self) -> Option<&dyn StepLoss> {
        None
    }

    /// Returns the figures that only evaluations compute, such as those that need all test samples at once; None without any. Then an
    /// evaluation calls [`RowFigures::forward`] in place of [`Task::loss`].
    fn row_figures(&self) -> Option<&dyn RowFigures> {
        None
    }

    /// Returns the predictions of samples without targets; None if the task makes none.
    fn predict(&self) -> Option<&dyn Predict> {
        None
    }

    /// Computes named figures for people from the sums over a test set, besides the loss; the main one first.
    fn figures(&self, _totals: &Totals) -> Vec<(&str, f64)> {
        Vec::new()
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
}

/// The construction of a task. Rank 0 surveys first, alone; then every rank builds the same task.
pub trait BuildTask: Task + Sized {
    /// What rank 0 learns about the data and sends to all ranks: lists of files, a vocabulary.
    type Survey: Serialize + DeserializeOwned;

    /// Whether [`BuildTask::build`] draws random numbers only for registered weights, and only by
    /// [`Init`](crate::models::Init). Then a resumed run skips drawing, because the checkpoint replaces the
    /// weights. Otherwise it draws as at the start.
    const DRAWS_ONLY_WEIGHTS: bool = false;

    /// The keys of `[custom]`, usually `Some(Settings::KEYS)` of a [`section!`](crate::common::section). Then a launch checks
    /// these settings before it starts a rank. Without it `[custom]` holds anything.
    const SETTINGS: Option<&'static [Key]> = None;

    /// Surveys the data.
    ///
    /// # Errors
    /// Data that cannot be trained on; the message names the file or key and the remedy.
    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Self::Survey, TaskError>;

    /// Returns inputs of a prediction in place of a survey. [`BuildTask::build`] then builds the task of a checkpoint, without its
    /// data.
    ///
    /// # Errors
    /// The task makes no predictions.
    fn inputs(_inputs: Unlabelled) -> Result<Self::Survey, TaskError> {
        Err(TaskError::NoPrediction)
    }

    /// Builds the model into `context.registry`, with weights from torch's generator, which has the same seed on
    /// every rank.
    ///
    /// # Errors
    /// Settings that the model does not support.
    fn build(recipe: &Recipe, survey: Self::Survey, context: BuildContext<'_>) -> Result<Self, TaskError>;
}

/// What is done with a task whose type the recipe decides.
pub(crate) trait WithTask {
    /// The result.
    type Output;

    /// Does it with the task `T`.
    fn run<T: BuildTask + 'static>(self) -> Self::Output;
}

/// Does something with the task that a recipe names; `None` if that is a user's own. A test starts every other task.
pub(crate) fn with_task<W: WithTask>(task: recipe::Task, with: W) -> Option<W::Output> {
    Some(match task.as_str() {
        "classify" => with.run::<Classify>(),
        "segment" => with.run::<Segment>(),
        "lm" => with.run::<Lm>(),
        "regress" => with.run::<Regress>(),
        "program" => with.run::<Program>(),
        _ => return None,
    })
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
    /// Collects more than a training needs; only for `dtrain data`.
    pub details: Option<&'a mut Details>,
}

impl SurveyContext<'_> {
    /// Runs a survey with all cores and reports to the log.
    pub(crate) fn with_log<T>(survey: impl FnOnce(&mut SurveyContext<'_>) -> T) -> T {
        survey(&mut SurveyContext {
            threads: cores(),
            report: &mut |sentence| tracing::info!("{sentence}"),
            warn: &mut |sentence| tracing::warn!("{sentence}"),
            details: None,
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
    /// The memory for decoded images, which the data sets share.
    pub cache: CacheBudget,
}

#[cfg(test)]
mod tests;
