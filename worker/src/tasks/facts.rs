//! What the engine knows of a built task, apart from its loss.

use std::sync::Arc;

use dtrain_common::manifest::{FieldType, SampleField};
use serde_json::Value;

use super::network::{Model, Network};
use crate::data::{Dataset, Field, FieldKind, First, Numbered, Sampling, TokenizerFiles};
use crate::models::Exported;

/// What the engine knows of a task. It is fixed when the task is built.
#[derive(Clone)]
pub struct Facts {
    /// The training samples.
    pub train: Arc<dyn Dataset>,
    /// The training samples of a step; without it each once in an epoch. See [`Facts::sampling`].
    pub sampling: Option<Sampling>,
    /// The validation samples, which evaluations during the training take in place of the test samples.
    pub val: Option<Arc<dyn Dataset>>,
    /// The training samples of `train.overfit`, which evaluations during the training take in place of all others.
    pub repeated: Option<Arc<dyn Dataset>>,
    /// The test samples.
    pub test: Arc<dyn Dataset>,
    /// More test sets, each with its name.
    pub more_tests: Vec<(String, Arc<dyn Dataset>)>,
    /// The data in a few words, such as "100 classes".
    pub description: String,
    /// The number of classes; 0 without classes.
    pub classes: usize,
    /// The names of the classes in the order of their numbers; may be empty. Manifests of checkpoints contain them,
    /// and a run resumes only from a checkpoint with the same names.
    pub class_names: Vec<String>,
    /// The number of elements of [`Loss::sums`](super::Loss::sums).
    pub sums: usize,
    /// The weight of a complete sample, which keeps gradients at their usual size: the number of its pixels or tokens
    /// if the loss is their sum.
    pub weight_per_sample: f64,
    /// Whether only the optimizer changes trained parameters, never [`Task::loss`](super::Task::loss). Then checkpoints
    /// copy parameters during the next step, and mixed precision casts them once per step. Otherwise training waits for
    /// the copy, and each micro-step casts. Buffers may change in any case.
    pub leaves_parameters_unchanged: bool,
    /// Whether [`Task::loss`](super::Task::loss) does the same work on every batch of one size and weight, as the
    /// captures of `model.compile = "graph"` require. Its operations, their order and their tensors must not depend on
    /// values in the batch or on numbers that the host draws or counts. It must not read values of tensors.
    pub is_capturable: bool,
    /// The sizes of batches for which the model is valid.
    pub batches: BatchSizes,
    /// What else, besides BatchNorm, depends on the partition of a step: a text to follow "depends on the
    /// micro-batch:". None if nothing does.
    pub micro_batch_warning: Option<String>,
    /// The names of buffers that the loss writes in training and whose values of several micro-batches cannot be
    /// joined, such as a queue. Buffers of a floating dtype change by the mean of the micro-batches' changes, weighted
    /// by samples; others take the largest value of the ranks' last micro-batches. With such names, a step of more than
    /// one micro-batch or rank is an error.
    pub undivided_buffers: Vec<String>,
    /// Whether the file of the model has no weights.
    pub lacks_weights: bool,
    /// Whether the file of the model does not state for which inputs it is valid.
    pub lacks_guards: bool,
    /// Data that a saved model needs, such as a vocabulary: `extra` in the manifest of every checkpoint. A run resumes
    /// only from a checkpoint with the same data. Null for none.
    pub extra: Value,
    /// The tokenizer of the model's texts, whose files every checkpoint has.
    pub tokenizer: Option<TokenizerFiles>,
}

/// The name of the test samples.
pub(crate) const TEST: &str = "test";
/// The name of the validation samples.
const VAL: &str = "val";
/// The name of the training samples that are evaluated.
const REPEATED: &str = "train";

/// A set of samples to evaluate.
#[derive(Clone)]
pub(crate) struct EvalSet {
    pub(crate) name: String,
    pub(crate) samples: Arc<dyn Dataset>,
}

impl EvalSet {
    /// Returns at most the first `samples` samples of the set; all without a limit.
    pub(crate) fn first(self, samples: Option<usize>) -> Self {
        Self { samples: First::of(self.samples, samples.unwrap_or(usize::MAX)), ..self }
    }
}

/// The numbers of samples for which a model is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSizes {
    /// The fewest samples of a training micro-batch.
    pub least: usize,
    /// The most samples of a training micro-batch; None without a limit.
    pub most: Option<usize>,
    /// The fewest samples of an evaluation's batch.
    pub evaluation_least: usize,
    /// The most samples of an evaluation's batch; None without a limit.
    pub evaluation_most: Option<usize>,
}

impl BatchSizes {
    /// Any number of samples.
    pub const ANY: Self = Self { least: 1, most: None, evaluation_least: 1, evaluation_most: None };

    /// Returns the number of samples nearest to `batch` that is valid for an evaluation.
    pub(crate) fn evaluated(&self, batch: usize) -> usize {
        batch.min(self.evaluation_most.unwrap_or(usize::MAX)).max(self.evaluation_least)
    }
}

impl Facts {
    /// Returns the facts of a task of which nothing else is known: no classes and no figures, samples of weight 1,
    /// each training sample once in an epoch, and a loss that may do anything.
    pub fn new(train: Arc<dyn Dataset>, test: Arc<dyn Dataset>, description: impl Into<String>) -> Self {
        Self {
            sampling: None,
            train,
            val: None,
            repeated: None,
            test,
            more_tests: Vec::new(),
            description: description.into(),
            classes: 0,
            class_names: Vec::new(),
            sums: 0,
            weight_per_sample: 1.0,
            leaves_parameters_unchanged: false,
            is_capturable: false,
            batches: BatchSizes::ANY,
            micro_batch_warning: None,
            undivided_buffers: Vec::new(),
            lacks_weights: false,
            lacks_guards: false,
            extra: Value::Null,
            tokenizer: None,
        }
    }

    /// Returns the set of the evaluations during the training.
    pub(crate) fn watched(&self) -> EvalSet {
        let (name, samples) = match (&self.repeated, &self.val) {
            (Some(repeated), _) => (REPEATED, repeated),
            (None, Some(val)) => (VAL, val),
            (None, None) => (TEST, &self.test),
        };
        EvalSet { name: name.to_owned(), samples: Arc::clone(samples) }
    }

    /// Returns the sets of a test: the test samples, and those with other names.
    pub(crate) fn tests(&self) -> Vec<EvalSet> {
        let own = EvalSet { name: TEST.to_owned(), samples: Arc::clone(&self.test) };
        let more = self
            .more_tests
            .iter()
            .map(|(name, samples)| EvalSet { name: name.clone(), samples: Arc::clone(samples) });
        std::iter::once(own).chain(more).collect()
    }

    /// Returns the training samples of a step.
    pub fn sampling(&self) -> Sampling {
        self.sampling.clone().unwrap_or_else(|| Sampling::shuffled(self.train.len()))
    }

    /// Returns the fields of a training sample, for the manifest of a checkpoint.
    pub(crate) fn sample_fields(&self) -> Vec<SampleField> {
        let field = |field: &Field| SampleField {
            name: field.name.to_string(),
            dtype: match field.kind {
                FieldKind::F32 => FieldType::Float32,
                FieldKind::I64 => FieldType::Int64,
            },
            shape: field.shape.clone(),
        };
        // A prediction has no random numbers.
        let fields = self.train.fields().iter().filter(|field| field.name != Numbered::FIELD);
        fields.map(field).collect()
    }

    /// Adds what the file of an exported program states: the sizes of batches, buffers that cannot be divided, and
    /// whether the file lacks weights or guards.
    pub fn with_exported(mut self, exported: &Exported) -> Self {
        let (evaluation_least, evaluation_most) = exported.evaluation_batches();
        let (least, most) = (exported.min_micro_batch(), exported.max_micro_batch());
        self.batches = BatchSizes { least, most, evaluation_least, evaluation_most };
        self.undivided_buffers = exported.undivided_buffers();
        self.lacks_weights = exported.lacks_weights();
        self.lacks_guards = !exported.has_guards();
        self
    }

    /// Adds the facts of an exported program whose parameters only the optimizer changes. `used` are the outputs that
    /// are figures.
    pub(super) fn with_program(self, network: &Network, used: &[&str]) -> Self {
        let mut facts = self.with_exported(network.exported());
        facts.description += &network.unused_outputs(used);
        facts.leaves_parameters_unchanged = true;
        facts.is_capturable = !network.exported().draws_random_numbers();
        facts.micro_batch_warning = network.micro_batch_warning();
        facts
    }

    /// Adds the facts of a network. `used` are the outputs that are figures. `least`: the fewest samples of a training
    /// micro-batch of a built-in one.
    pub(super) fn with_model<B>(
        mut self,
        model: &Model<B>,
        used: &[&str],
        least: impl FnOnce(&B) -> usize,
    ) -> Self {
        match model {
            Model::Built(built) => {
                self.batches.least = least(built);
                self.leaves_parameters_unchanged = true;
                self.is_capturable = true;
                self
            }
            Model::Exported(network) => self.with_program(network, used),
        }
    }
}
