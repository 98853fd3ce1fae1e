//! Programs that `torch.export` wrote (`.pt2`), run operation by operation through libtorch's dispatcher. Autograd,
//! autocast, recomputation and symbolic tensors work as for the layers of this crate.
//!
//! Reading goes from file to steps: [`archive`] (zip) -> [`schema`] (JSON) and [`tensors`] -> [`graph`] (names become
//! numbers) -> [`prepare`] (calls with prepared arguments) -> [`run`].

mod adapters;
mod archive;
mod axis;
mod buffers;
mod dependence;
mod draws;
mod dtype;
mod frozen;
mod gradients;
mod graph;
mod guards;
mod modes;
mod module_spans;
mod names;
mod order;
mod place;
mod prepare;
mod rows;
mod run;
mod schema;
mod segments;
mod slots;
mod tensors;
mod warnings;

use std::collections::BTreeSet;
use std::path::Path;

use tch::{Kind, Tensor};

use self::archive::Archive;
use self::graph::Program;
use self::guards::Guards;
use self::prepare::{Purpose, prepare};
use self::run::Runnable;
use self::schema::{Checked, Document, Notes, Version};
use super::dtype::dtype_of;
use super::error::ModelError;
use super::registry::Registry;

pub use self::buffers::WrittenBuffer;
use crate::exported_error::{ExportedError, Problem, SCHEMA};

/// An input or output of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The name: an argument of `forward`, or a key of its result.
    pub name: String,
    /// The dtype.
    pub kind: Kind,
    /// The shape; None for a length that depends on the batch.
    pub shape: Vec<Option<i64>>,
}

/// A model from a file of `dtrain import` or `torch.export.save`.
pub struct Exported {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    evaluation_outputs: Vec<Port>,
    /// The inputs that each of the results of evaluation depends on.
    evaluation_inputs: Vec<BTreeSet<usize>>,
    train: Runnable,
    evaluate: Runnable,
    train_guards: Guards,
    evaluation_guards: Guards,
    has_small_norms: bool,
    written: Vec<WrittenBuffer>,
    lacks_weights: bool,
}

/// The entry with the program for evaluation.
const EVALUATION: &str = "extra/evaluation.json";
/// The entry with what `dtrain import` knows of the model.
const NOTES: &str = "extra/dtrain.json";
/// The entry with what the comparison with PyTorch has shown, which ends an import.
const CHECKED: &str = "extra/check.json";

impl Exported {
    /// Reads a file. Its parameters and buffers are registered under the names of Python's `state_dict`, in that order;
    /// parameters that do not require gradients in Python are frozen.
    ///
    /// # Errors
    /// A file that is not such an archive, is damaged, or whose operations libtorch does not know.
    pub fn load(path: &Path, registry: &mut Registry) -> Result<Self, ModelError> {
        let mut archive = Archive::open(path)?;
        let entry = archive.program()?;
        let document = read(&mut archive, &entry)?;
        let separate = archive.has(EVALUATION).then(|| read(&mut archive, EVALUATION)).transpose()?;
        let notes: Notes = if archive.has(NOTES) { archive.json(NOTES)? } else { Notes::default() };
        let checked: Checked = if archive.has(CHECKED) { archive.json(CHECKED)? } else { Checked::default() };
        archive.may_lack_weights = notes.without_weights;
        let mut products = frozen::weights(&document.graph_module);
        if let Some(separate) = &separate {
            let of_evaluation = frozen::weights(&separate.graph_module);
            products.retain(|name| of_evaluation.contains(name));
        }
        let signature = &document.graph_module.signature;
        let tensors = tensors::load(&mut archive, registry, signature, &products)?;

        let mut program = graph::resolve(&archive, &document.graph_module, &tensors)?;
        adapters::insert(&mut program, registry, true)?;
        frozen::replace(&mut program, registry)?;
        registry.warnings.extend(warnings::of_training(&program, separate.is_some()));
        let (inputs, outputs) = ports(&archive, &document, &program, &notes.inputs, &notes.outputs)?;
        gradients::check(&archive, &program)?;
        let written = buffers::written(&program);
        for buffer in &written {
            // Those that are not persistent, too: a step must rewind them, and a resumed run continue with them.
            if dtype_of(buffer.tensor.kind()).is_none() {
                let reason = format!(
                    "training writes the buffer `{}`, which is {:?}, and checkpoints cannot have it: make it complex64",
                    buffer.name,
                    buffer.tensor.kind()
                );
                return Err(archive.error(Problem::Unfit(reason)).into());
            }
            registry.root().hold_buffer(&buffer.name, &buffer.tensor)?;
        }
        let names: Vec<String> = inputs.iter().map(|port| port.name.clone()).collect();
        let (noted, smallest) = (notes.guards.as_ref(), checked.smallest.as_ref());
        let train_guards = Guards::read(
            &archive,
            &document,
            (&program.inputs, &names),
            noted.map(|both| &*both.train),
            smallest.map(|both| both.train),
        )?;
        let train = prepare(&archive, registry, &program, Purpose::Train)?;
        let (evaluate, evaluation_outputs, evaluation_inputs, evaluation_guards) = match &separate {
            None => {
                let steps = prepare(&archive, registry, &program, Purpose::EvaluateTraining)?;
                let inputs = dependence::inputs_of_results(&program);
                (steps, outputs.clone(), inputs, train_guards.clone())
            }
            Some(document) => {
                let signature = &document.graph_module.signature;
                let tensors = tensors::of_evaluation(&mut archive, tensors, registry, signature)?;
                let mut program = graph::resolve(&archive, &document.graph_module, &tensors)?;
                adapters::insert(&mut program, registry, false)?;
                frozen::replace(&mut program, registry)?;
                let (own, outputs) =
                    ports(&archive, document, &program, &notes.inputs, &notes.evaluation_outputs)?;
                if own.len() != inputs.len() {
                    let reason = "the programs for training and evaluation take different inputs";
                    return Err(archive.error(Problem::Unfit(reason.to_owned())).into());
                }
                let guards = Guards::read(
                    &archive,
                    document,
                    (&program.inputs, &names),
                    noted.map(|both| &*both.evaluate),
                    smallest.map(|both| both.evaluate),
                )?;
                let inputs = dependence::inputs_of_results(&program);
                (prepare(&archive, registry, &program, Purpose::Evaluate)?, outputs, inputs, guards)
            }
        };
        let is_of_rows = !registry.is_batch_synced() && !registry.is_batch_frozen;
        let has_small_norms = registry.has_small_norms && is_of_rows;
        Ok(Self {
            inputs,
            outputs,
            evaluation_outputs,
            evaluation_inputs,
            train,
            evaluate,
            train_guards,
            evaluation_guards,
            has_small_norms,
            written,
            lacks_weights: notes.without_weights,
        })
    }

    /// Returns the inputs, in the order of [`Exported::run`].
    pub fn inputs(&self) -> &[Port] {
        &self.inputs
    }

    /// Returns the results of training.
    pub fn outputs(&self) -> &[Port] {
        &self.outputs
    }

    /// Returns the results of evaluation.
    pub fn evaluation_outputs(&self) -> &[Port] {
        &self.evaluation_outputs
    }

    /// Returns the numbers of the inputs on whose values a result of evaluation depends, by its number.
    pub fn inputs_of(&self, result: usize) -> &BTreeSet<usize> {
        &self.evaluation_inputs[result]
    }

    /// Returns whether the file has no weights (`dtrain import --weights none`): its large tensors are zero.
    pub fn lacks_weights(&self) -> bool {
        self.lacks_weights
    }

    /// Returns the operations, with their places in the model, whose random numbers in training depend on the micro-batch,
    /// such as dropout within attention. Those of others depend on the sample.
    pub fn draws_by_micro_batch(&self) -> &[String] {
        &self.train.draws.by_micro_batch
    }

    /// Returns whether training draws random numbers, such as dropout.
    pub fn draws_random_numbers(&self) -> bool {
        self.train.draws.any
    }

    /// Returns whether the file has the conditions on sizes under which it was exported.
    pub fn has_guards(&self) -> bool {
        self.train_guards.is_known && self.evaluation_guards.is_known
    }

    /// Checks the programs for inputs of these shapes, without the batch. May change the sizes of batches.
    ///
    /// # Errors
    /// A length, or a condition on sizes, for which a program is not valid.
    pub fn set_lengths(&mut self, shapes: &[Vec<i64>]) -> Result<(), Problem> {
        self.train_guards.set_lengths(shapes)?;
        self.evaluation_guards.set_lengths(shapes)
    }

    /// Returns the fewest samples of a training micro-batch: those for which the program is valid, and 2 if a batch
    /// normalisation has a single value per channel of a sample.
    pub fn min_micro_batch(&self) -> usize {
        let of_norms = if self.has_small_norms { 2 } else { 1 };
        self.train_guards.batches.least().max(of_norms)
    }

    /// Returns the most samples of a training micro-batch for which the program is valid, if there is a limit.
    pub fn max_micro_batch(&self) -> Option<usize> {
        self.train_guards.batches.most()
    }

    /// Returns the fewest samples of an evaluation's batch, and the most if there is a limit.
    pub fn evaluation_batches(&self) -> (usize, Option<usize>) {
        let batches = self.evaluation_guards.batches;
        (batches.least(), batches.most())
    }

    /// Returns the buffers that training changes, also those that are not persistent.
    pub fn written_buffers(&self) -> &[WrittenBuffer] {
        &self.written
    }

    /// Returns the buffers that training writes and whose values of several micro-batches cannot be joined, such as a queue.
    pub fn undivided_buffers(&self) -> Vec<String> {
        let unusual = self.written.iter().filter(|buffer| !buffer.is_usual);
        unusual.map(|buffer| buffer.name.clone()).collect()
    }

    /// Runs the program for training or for evaluation on tensors in the order of [`Exported::inputs`], on the model's
    /// device. Returns the results in the order of [`Exported::outputs`] or [`Exported::evaluation_outputs`].
    pub fn run(&self, inputs: &[&Tensor], train: bool) -> Result<Vec<Tensor>, ModelError> {
        if train { &self.train } else { &self.evaluate }.run(inputs)
    }
}

/// Reads a program, whose schema is checked first.
fn read(archive: &mut Archive, entry: &str) -> Result<Document, ExportedError> {
    let bytes = archive.json_bytes(entry)?;
    let Version { schema_version: found, torch_version } = archive.parse(entry, &bytes)?;
    if found.major != SCHEMA {
        return Err(archive.error(Problem::Schema(found.major, found.minor, torch_version)));
    }
    archive.parse(entry, &bytes)
}

/// Returns the inputs, and the outputs that are tensors.
fn ports(
    archive: &Archive,
    document: &Document,
    program: &Program,
    input_names: &[String],
    output_names: &[String],
) -> Result<(Vec<Port>, Vec<Port>), ExportedError> {
    let port = |name: String, meta: Option<&schema::TensorMeta>| {
        let known = meta.and_then(|meta| Some((dtype::dtype(meta.dtype)?.0, graph::shape(meta))));
        let (kind, shape) =
            known.ok_or_else(|| archive.error(Problem::Graph(format!("it does not describe `{name}`"))))?;
        Ok(Port { name, kind, shape })
    };
    let placeholders: Vec<&str> = program.inputs.iter().map(|input| input.name.as_str()).collect();
    let named = names::inputs(&document.graph_module, &placeholders, input_names);
    let inputs = program.inputs.iter().zip(named).map(|(input, name)| port(name, input.meta.as_ref()));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let named = names::outputs(&document.graph_module, program.returned.len(), output_names);
    let outputs = program.returned.iter().zip(named).filter(|(returned, _)| returned.operand.is_some());
    let outputs = outputs.map(|(returned, name)| port(name, returned.meta.as_ref()));
    let outputs = outputs.collect::<Result<Vec<_>, _>>()?;
    if outputs.is_empty() {
        let reason = "the program returns no tensor: return the logits or the loss from forward";
        return Err(archive.error(Problem::Unfit(reason.to_owned())));
    }
    Ok((inputs, outputs))
}

#[cfg(test)]
mod tests;
