//! Programs of a user beside the network: a loss, a figure or a change. Each gives every sample its own values, so that the
//! cut of a step does not matter.

mod apart;
mod change;
mod figure;
mod loss;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dtrain_common::files;
use dtrain_torch_shim::autocast::Autocast;
use serde_json::{Map, Value};
use tch::{Device, TchError, Tensor};

use super::network::{MAIN_OUTPUTS, OutputAt, Ports, bind_inputs, check_input, lengths, unfit_output};
use super::program_error::{ProgramError, Unfit};
use super::{Batch, Facts, Mode, TaskError};
use crate::data::{Field, Numbered};
use crate::models::{Exported, ModelError, Port, Registry};
use crate::tensors::is_floating;

pub(super) use change::{OwnChange, with_change};
pub(super) use figure::OwnFigure;
pub(super) use loss::{OfBatch, OwnLoss, OwnLosses};

/// Begins the keys of a checkpoint with the hashes of such programs.
pub(crate) const OF_PROGRAM: &str = "program of ";

/// The usual names of an input that takes the main output, besides those of the output.
const PREDICTIONS: [&str; 6] = ["input", "outputs", "prediction", "predictions", "pred", "scores"];

/// A user's program, whose inputs are outputs of the network and fields of the data.
pub(super) struct OwnProgram {
    exported: Exported,
    path: PathBuf,
    /// The key of a recipe.
    key: String,
    device: Device,
    /// The origin of each input.
    sources: Vec<Source>,
    /// The names of the outputs that inputs take.
    taken: Vec<String>,
    /// Of the file.
    hash: String,
    /// The shape of a sample of each input, if it is known.
    shapes: Vec<Option<Vec<i64>>>,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq)]
enum Source {
    /// The numbers of an output in evaluation and, if it is there, in training.
    Output {
        evaluate: usize,
        train: Option<usize>,
    },
    Field(String),
}

impl OwnProgram {
    /// Loads a program for `key` of a recipe.
    ///
    /// # Errors
    /// A file that is no program, or one with state or chance: it would not give equal values for every cut of a step.
    pub(super) fn load(key: &str, path: &Path, device: Device) -> Result<Self, TaskError> {
        let mut registry = Registry::new(device);
        let exported = Exported::load(path, &mut registry)?;
        let (path, key) = (path.to_owned(), key.to_owned());
        // The file was read just now.
        let hash = files::hash(&path).unwrap_or_default();
        let (sources, taken, shapes) = (Vec::new(), Vec::new(), Vec::new());
        let own = Self { exported, path, key, device, sources, taken, hash, shapes };
        let trained = registry.parameters().find(|entry| !entry.is_frozen());
        let written = own.exported.written_buffers().first();
        let problem = match (trained, written) {
            (Some(parameter), _) => format!(
                "nothing trains its parameter `{}`; make it a buffer, or set requires_grad to False, and import it again",
                parameter.name()
            ),
            (None, Some(buffer)) => format!(
                "it writes the buffer `{}`, and no step joins that of several micro-batches; leave the buffer as it is",
                buffer.name
            ),
            (None, None) if own.exported.draws_random_numbers() => {
                "it draws random numbers, which depend on the cut of a step; return the same for the same inputs".to_owned()
            }
            (None, None) => return Ok(own),
        };
        Err(own.error(problem))
    }

    /// Returns an error that names the file and the key.
    pub(super) fn error(&self, reason: impl Into<String>) -> TaskError {
        ProgramError::Own(format!("{}: {}: {}", self.path.display(), self.key, reason.into())).into()
    }

    fn ports(&self, mode: Mode) -> &[Port] {
        match mode {
            Mode::Train => self.exported.outputs(),
            Mode::Evaluate => self.exported.evaluation_outputs(),
        }
    }

    /// Returns the names of the outputs of a network that the inputs take by their names.
    pub(super) fn takes(&self, outputs: &[Port], stated: &BTreeMap<String, String>) -> Vec<String> {
        let inputs = self.exported.inputs().iter().map(|input| &input.name);
        let names = inputs.map(|name| stated.get(name).unwrap_or(name));
        names.filter(|name| outputs.iter().any(|port| port.name == **name)).cloned().collect()
    }

    /// Binds the inputs by name: to `stated`, else to an output of the network or a field of the data with that name, else by
    /// the usual names of the main output and of fields.
    ///
    /// # Errors
    /// An input that nothing feeds, or of another type or shape.
    pub(super) fn bind(
        mut self,
        ports: &Ports<'_>,
        fields: &[Field],
        stated: &BTreeMap<String, String>,
    ) -> Result<Self, TaskError> {
        let main_at = ports.main_at(Mode::Evaluate);
        let main = ports.evaluate.get(main_at).filter(|_| ports.takes_main);
        let others = ports.evaluate.iter().filter(|port| Some(*port) != main);
        let outputs = main.into_iter().chain(others).map(|port| port.name.as_str());
        let names: Vec<&str> = outputs.chain(fields.iter().map(|field| &*field.name)).collect();
        let mut all = stated.clone();
        for input in self.exported.inputs() {
            let name = input.name.as_str();
            let is_usual = [&MAIN_OUTPUTS[..], &PREDICTIONS].concat().contains(&name);
            if let (Some(main), true) = (main, is_usual && !names.contains(&name)) {
                all.entry(name.to_owned()).or_insert_with(|| main.name.clone());
            }
        }
        let bound = bind_inputs(self.exported.inputs(), &names, &all);
        let bound = bound.map_err(|unfit| self.error(self.words(unfit, &names)))?;
        for (input, name) in self.exported.inputs().to_vec().iter().zip(bound) {
            let number = |all: &[Port]| all.iter().position(|port| port.name == name);
            let source = match number(ports.evaluate) {
                Some(evaluate) => {
                    let port = &ports.evaluate[evaluate];
                    self.check_output(input, port)?;
                    self.taken.push(port.name.clone());
                    self.shapes.push(port.shape.iter().skip(1).copied().collect::<Option<Vec<i64>>>());
                    let is_same = |at: &usize| ports.all(Mode::Train)[*at].shape == port.shape;
                    // The main output may have another name in evaluation.
                    let of_train = ports.all(Mode::Train);
                    let train =
                        number(of_train).or((evaluate == main_at).then_some(ports.main_at(Mode::Train)));
                    if train == Some(ports.main_at(Mode::Train)) {
                        ports
                            .auxiliary
                            .iter()
                            .try_for_each(|(at, _)| self.check_output(input, &of_train[*at]))?;
                    }
                    Source::Output { evaluate, train: train.filter(is_same) }
                }
                None => {
                    let field = fields.iter().find(|field| field.name == name);
                    let checked = field.map_or(Ok(()), |field| check_input(input, field));
                    checked.map_err(|unfit| self.error(self.words(unfit, &names)))?;
                    let length = |length: &usize| *length as i64;
                    self.shapes.push(field.map(|field| field.shape.iter().map(length).collect()));
                    Source::Field(name)
                }
            };
            self.sources.push(source);
        }
        if let Some(shapes) = self.shapes.iter().cloned().collect::<Option<Vec<_>>>() {
            let valid = self.exported.set_lengths(&shapes);
            valid.map_err(|problem| self.error(problem.to_string()))?;
        }
        self.check_apart()?;
        Ok(self)
    }

    /// Returns the words of an error of the inputs.
    fn words(&self, unfit: Unfit, names: &[&str]) -> String {
        let shown = names.iter().filter(|name| **name != Numbered::FIELD);
        let known = shown.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let inputs = "inputs";
        match unfit {
            Unfit::Unfed { input, .. } if self.key.starts_with("data.changes") => {
                format!(
                    "no field of the data feeds the input `{input}`, only {known} and `u`; leave this input out"
                )
            }
            Unfit::Unfed { input, .. } => format!(
                "no output of the network and no field of the data feeds the input `{input}`, only {known}; set {inputs} = {{ \
                 {input} = \"NAME\" }} with one of them"
            ),
            Unfit::NoField { input, field, .. } => format!(
                "{inputs} feeds `{input}` from {field:?}, which is no output of the network and no field of the data; there are \
                 {known}"
            ),
            other => other.to_string().replace("model.inputs", inputs).replace("the model", "the program"),
        }
    }

    fn check_output(&self, input: &Port, output: &Port) -> Result<(), TaskError> {
        let is_kind = input.kind == output.kind || is_floating(input.kind) && is_floating(output.kind);
        let fits = |(takes, has): (&Option<i64>, &Option<i64>)| takes.zip(*has).is_none_or(|(a, b)| a == b);
        let is_shape = input.shape.len() == output.shape.len()
            && input.shape.first() == Some(&None)
            && input.shape.iter().zip(&output.shape).skip(1).all(fits);
        if is_kind && is_shape {
            return Ok(());
        }
        let takes = match input.shape.split_first() {
            Some((None, [])) => "N".to_owned(),
            Some((None, rest)) => format!("N x {}", lengths(rest)),
            _ => format!("a fixed batch of {}", lengths(&input.shape)),
        };
        let kind = format!("{:?}", input.kind).to_lowercase();
        let expected = format!(
            "the input `{}` takes {takes} of {kind}; import the program again for this output, or set inputs",
            input.name
        );
        Err(self.error(unfit_output(output, &expected).to_string()))
    }

    /// Returns the names of the outputs of the network that the inputs take.
    fn outputs(&self) -> Vec<&str> {
        self.taken.iter().map(String::as_str).collect()
    }

    /// Adds the hash of the file to what a run compares with its checkpoint.
    fn add_to(&self, facts: &mut Facts) {
        if !facts.extra.is_object() {
            facts.extra = Value::Object(Map::new());
        }
        facts.extra[format!("{OF_PROGRAM}{}", self.key)] = self.hash.clone().into();
    }

    /// Returns whether training has all outputs that it takes.
    fn is_of_training(&self) -> bool {
        self.sources.iter().all(|source| !matches!(source, Source::Output { train: None, .. }))
    }

    /// Checks that a batch may have any size: the samples that count may be few. To be called last, since every file of
    /// `torch.export.save` needs two samples.
    fn check_sizes(&self) -> Result<(), TaskError> {
        match (self.exported.min_micro_batch(), self.exported.max_micro_batch()) {
            (1, None) => Ok(()),
            _ => Err(self.error(
                "it is not valid for batches of every size; write it with `dtrain import`, and let no branch depend on the batch",
            )),
        }
    }

    /// Returns whether an input takes this output in training.
    fn takes_in_training(&self, at: usize) -> bool {
        self.sources
            .iter()
            .any(|source| matches!(source, Source::Output { train: Some(own), .. } if *own == at))
    }

    /// Returns whether an input takes an output of the network.
    fn takes_output(&self) -> bool {
        self.sources.iter().any(|source| matches!(source, Source::Output { .. }))
    }

    /// Runs its program for training, or for evaluation, on the samples `rows` of a batch, or on all. It computes in float32 also in
    /// mixed precision.
    fn run(&self, given: &Given<'_>, rows: Option<&Tensor>, train: bool) -> Result<Vec<Tensor>, TaskError> {
        let _precise = Autocast::disable(self.device).map_err(ModelError::from)?;
        let value = |(source, port): (&Source, &Port)| -> Result<Tensor, TaskError> {
            let value = match (source, given.mode) {
                (Source::Output { train: Some(at), .. }, Mode::Train)
                | (Source::Output { evaluate: at, .. }, _) => (given.output)(*at)?,
                (Source::Field(name), _) => (given.field)(name)?,
            };
            let value = rows.map_or(Ok(value.shallow_clone()), |rows| value.f_index_select(0, rows))?;
            Ok(if value.kind() == port.kind { value } else { value.f_to_kind(port.kind)? })
        };
        let inputs = self.sources.iter().zip(self.exported.inputs()).map(value);
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        Ok(self.exported.run(&inputs.iter().collect::<Vec<_>>(), train)?)
    }
}

/// What a program gets of a batch.
struct Given<'a> {
    /// Returns an output of the network by number.
    output: OutputAt<'a>,
    /// Returns a field by name.
    field: &'a dyn Fn(&str) -> Result<Tensor, TaskError>,
    mode: Mode,
}

/// Returns a field of a batch.
fn fields(batch: &Batch, name: &str) -> Result<Tensor, TaskError> {
    Ok(batch.field(name)?.shallow_clone())
}

/// Returns the numbers of the samples that count; None if all do.
fn counted(batch: &Batch) -> Result<Option<Tensor>, TchError> {
    match batch.weight == batch.samples() as f64 {
        true => Ok(None),
        false => batch.weights.f_nonzero()?.f_view([-1]).map(Some),
    }
}
