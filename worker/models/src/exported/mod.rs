//! Programs that `torch.export` wrote (`.pt2`), run operation by operation through libtorch's dispatcher. Autograd,
//! autocast, recomputation and symbolic tensors work as for the layers of this crate.
//!
//! Reading goes from file to steps: [`archive`] (zip) -> [`schema`] (JSON) and [`tensors`] -> [`graph`] (names become
//! numbers) -> [`prepare`] (calls with prepared arguments) -> [`run`].

mod archive;
mod dtype;
mod error;
mod graph;
mod modes;
mod names;
mod place;
mod prepare;
mod run;
mod schema;
mod segments;
mod slots;
mod tensors;

use std::path::Path;

use tch::{Kind, Tensor};

use self::archive::Archive;
use self::graph::Program;
use self::prepare::{Purpose, prepare};
use self::run::Runnable;
use self::schema::{Document, Notes, Version};
use super::error::ModelError;
use super::registry::Registry;

pub use self::error::{ExportedError, Problem};

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
    train: Runnable,
    evaluate: Runnable,
    smallest: usize,
}

/// The entry with the program for evaluation.
const EVALUATION: &str = "extra/evaluation.json";
/// The entry with what `dtrain import` knows of the model.
const NOTES: &str = "extra/dtrain.json";

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
        let tensors = tensors::load(&mut archive, registry, &document.graph_module.signature)?;

        let program = graph::resolve(&archive, &document.graph_module, &tensors)?;
        let (inputs, outputs) = ports(&archive, &document, &program, &notes.inputs, &notes.outputs)?;
        let train = prepare(&archive, registry, &program, Purpose::Train)?;
        let (evaluate, evaluation_outputs) = match &separate {
            None => {
                let steps = prepare(&archive, registry, &program, Purpose::EvaluateTraining)?;
                (steps, outputs.clone())
            }
            Some(document) => {
                let signature = &document.graph_module.signature;
                let tensors = tensors::of_evaluation(&mut archive, tensors, registry, signature)?;
                let program = graph::resolve(&archive, &document.graph_module, &tensors)?;
                let (own, outputs) =
                    ports(&archive, document, &program, &notes.inputs, &notes.evaluation_outputs)?;
                if own.len() != inputs.len() {
                    let reason = "the programs for training and evaluation take different inputs";
                    return Err(archive.error(Problem::Unfit(reason.to_owned())).into());
                }
                (prepare(&archive, registry, &program, Purpose::Evaluate)?, outputs)
            }
        };
        let smallest = if train.small_norms && !registry.is_batch_synced() { 2 } else { 1 };
        Ok(Self { inputs, outputs, evaluation_outputs, train, evaluate, smallest })
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

    /// Returns whether training draws random numbers, such as dropout.
    pub fn draws_random_numbers(&self) -> bool {
        self.train.draws
    }

    /// Returns the fewest samples of a training micro-batch: 2 if a batch normalisation has a single value per channel
    /// of a sample.
    pub fn min_micro_batch(&self) -> usize {
        self.smallest
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
    if found.major != schema::MAJOR {
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
