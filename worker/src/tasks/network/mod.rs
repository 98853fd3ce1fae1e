//! Exported programs as the networks of tasks: their inputs are fields of the data, by name.

mod binding;
mod model;
mod outputs;
mod ports;

use std::collections::BTreeSet;
use std::path::PathBuf;

use dtrain_parts::Outputs;
use dtrain_recipe::{BatchNorm, Recipe};
use dtrain_torch_shim::program::load_library;
use dtrain_torch_shim::symbolic::is_symbolic;
use tch::{Device, Tensor};

use super::forward::Forward;
use super::program_error::{ProgramError, Unfit};
use outputs::Chosen;

use super::{Batch, Mode, TaskError};
use crate::data::{Field, names_with_texts};
use crate::models::{Exported, Port, Registry};

pub(super) use binding::{bind as bind_inputs, check as check_input, lengths};
pub(super) use model::{ImageNetwork, Model};
pub(super) use outputs::{check as check_output, named as named_output, unfit as unfit_output};
pub(super) use ports::{OutputAt, Ports, logits};

/// The usual names of the main output.
pub(super) const MAIN_OUTPUTS: [&str; 3] = ["logits", "out", "output"];

/// An exported program, loaded.
pub(super) struct Program {
    exported: Exported,
    path: PathBuf,
    device: Device,
}

impl Program {
    /// Loads the libraries of the recipe and the program in `model.file`.
    pub(super) fn load(recipe: &Recipe, registry: &mut Registry) -> Result<Self, TaskError> {
        for path in &recipe.model.libraries {
            let failed = |source| ProgramError::Library { path: path.clone(), source };
            load_library(path).map_err(failed)?;
        }
        // A loaded recipe of such a task has a file.
        let path = recipe.model.file.clone().unwrap_or_default();
        let device = registry.device();
        let program = Self { exported: Exported::load(&path, registry)?, path, device };
        if registry.is_batch_grouped && !is_symbolic() {
            program.exported.check_rows(registry)?;
        }
        match registry.has_batch_norms() || recipe.model.batchnorm == BatchNorm::Local {
            true => Ok(program),
            false => Err(program.unfit(Unfit::NoBatchNorm).into()),
        }
    }

    pub(super) fn exported(&self) -> &Exported {
        &self.exported
    }

    /// Returns the tokens of a sample: `model.context`, else the length of the program's input.
    pub(super) fn context(&self, recipe: &Recipe) -> Result<usize, TaskError> {
        if let Some(context) = recipe.model.context {
            return Ok(context);
        }
        let inputs = self.exported.inputs();
        let columns = recipe.fields().unwrap_or_default();
        let of_table: Vec<_> =
            columns.iter().map(|columns| (columns.field.as_str(), columns.kind.is_text())).collect();
        let names = names_with_texts(&of_table);
        let fields = match recipe.has_documents() {
            _ if recipe.has_texts() => names.iter().map(String::as_str).collect(),
            true => vec!["tokens", "targets", "documents", "positions"],
            false => vec!["tokens", "targets"],
        };
        let fields = binding::bind(inputs, &fields, &recipe.model.inputs);
        let fields = fields.map_err(|unfit| self.unfit(unfit))?;
        let is_text = |name: &str| of_table.iter().any(|(field, is_text)| *is_text && *field == name);
        let tokens = fields.iter().zip(inputs).find(|(field, _)| *field == "tokens" || is_text(field));
        let length = tokens.and_then(|(_, port)| port.shape.get(1).copied().flatten());
        length.map(|length| length as usize).ok_or_else(|| self.unfit(Unfit::NoContext).into())
    }

    /// Binds the inputs to fields, and chooses the outputs. `usual` are names of the main output.
    pub(super) fn bind(
        mut self,
        recipe: &Recipe,
        fields: &[Field],
        usual: &[&str],
    ) -> Result<Network, TaskError> {
        let bound = self.bound(recipe, fields, usual).map_err(|unfit| self.unfit(unfit))?;
        let shape = |name: &String| fields.iter().find(|field| field.name == *name).map(|field| &field.shape);
        let shapes = bound.inputs.iter().filter_map(shape);
        let shapes: Vec<Vec<i64>> =
            shapes.map(|shape| shape.iter().map(|length| *length as i64).collect()).collect();
        let valid = self.exported.set_lengths(&shapes);
        valid.map_err(|problem| self.unfit(Unfit::Sizes(problem.to_string())))?;
        Ok(Network { program: self, bound })
    }

    fn bound(&self, recipe: &Recipe, fields: &[Field], usual: &[&str]) -> Result<Bound, Unfit> {
        let (model, exported) = (&recipe.model, &self.exported);
        let names: Vec<_> = fields.iter().map(|field| &*field.name).collect();
        let inputs = binding::bind(exported.inputs(), &names, &model.inputs)?;
        for (port, name) in exported.inputs().iter().zip(&inputs) {
            fields
                .iter()
                .filter(|field| field.name == *name)
                .try_for_each(|field| binding::check(port, field))?;
        }
        let (outputs, tested) = (exported.outputs(), exported.evaluation_outputs());
        let train = outputs::choose(outputs, model.output.as_deref(), usual, &model.auxiliary)?;
        // An evaluation with one output may name it otherwise.
        let main = outputs.get(train.main).map(|port| port.name.as_str()).filter(|_| tested.len() > 1);
        let evaluate = outputs::choose(tested, main, usual, &Default::default())?;
        Ok(Bound { inputs, train, evaluate })
    }

    pub(super) fn unfit(&self, unfit: Unfit) -> ProgramError {
        ProgramError::of(&self.path, unfit)
    }
}

/// How a program is used.
struct Bound {
    /// The field of each input.
    inputs: Vec<String>,
    train: Chosen,
    evaluate: Chosen,
}

/// A program whose inputs are bound to fields of the data.
pub(super) struct Network {
    program: Program,
    bound: Bound,
}

impl Network {
    /// Checks the shapes of the main outputs, and of auxiliary ones, for N samples.
    pub(super) fn check_outputs(
        &self,
        expected: &str,
        fits: &dyn Fn(&[Option<i64>]) -> bool,
    ) -> Result<(), TaskError> {
        let check = |port: &Port| {
            outputs::check(port, expected, fits).map_err(|unfit| TaskError::from(self.program.unfit(unfit)))
        };
        self.bound.train.all().map(|at| &self.ports(Mode::Train)[at]).try_for_each(check)?;
        check(self.main(Mode::Evaluate))
    }

    fn chosen(&self, mode: Mode) -> &Chosen {
        match mode {
            Mode::Train => &self.bound.train,
            Mode::Evaluate => &self.bound.evaluate,
        }
    }

    /// Returns the outputs in the order of [`Network::run`].
    pub(super) fn ports(&self, mode: Mode) -> &[Port] {
        match mode {
            Mode::Train => self.program.exported.outputs(),
            Mode::Evaluate => self.program.exported.evaluation_outputs(),
        }
    }

    /// Returns the number of the main output.
    pub(super) fn main_at(&self, mode: Mode) -> usize {
        self.chosen(mode).main
    }

    /// Returns the main output.
    pub(super) fn main(&self, mode: Mode) -> &Port {
        &self.ports(mode)[self.main_at(mode)]
    }

    /// Returns the fields that the program takes.
    pub(super) fn fields(&self) -> &[String] {
        &self.bound.inputs
    }

    /// Runs the program on `inputs`, the values of [`Network::fields`].
    pub(super) fn run(&self, inputs: &[&Tensor], mode: Mode) -> Result<Vec<Tensor>, TaskError> {
        Ok(self.program.exported.run(inputs, mode == Mode::Train)?)
    }

    /// Runs the program on a batch. Returns the main output, and in training the auxiliary ones.
    pub(super) fn outputs(&self, batch: &Batch, mode: Mode) -> Result<Outputs, TaskError> {
        Ok(self.chosen_of(&self.run_batch(batch, mode)?, mode))
    }

    /// Runs the program on a batch. Returns all outputs.
    pub(super) fn run_batch(&self, batch: &Batch, mode: Mode) -> Result<Vec<Tensor>, TaskError> {
        let inputs: Vec<_> = self.fields().iter().map(|name| batch.field(name)).collect::<Result<_, _>>()?;
        let outputs = self.run(&inputs, mode)?;
        batch.offer_outputs(&outputs);
        Ok(outputs)
    }

    /// Returns the main output among all, and in training the auxiliary ones.
    pub(super) fn chosen_of(&self, all: &[Tensor], mode: Mode) -> Outputs {
        let Chosen { main, auxiliary } = self.chosen(mode);
        let output = |at: usize| all[at].shallow_clone();
        Outputs {
            main: output(*main),
            auxiliary: auxiliary.iter().map(|(at, weight)| (output(*at), *weight)).collect(),
        }
    }

    pub(super) fn exported(&self) -> &Exported {
        &self.program.exported
    }

    /// Returns an error that names the program's file.
    pub(super) fn unfit(&self, unfit: Unfit) -> TaskError {
        self.program.unfit(unfit).into()
    }

    /// Returns the warning for random numbers, a text to follow "depends on the micro-batch:".
    pub(super) fn micro_batch_warning(&self) -> Option<String> {
        const SHOWN: usize = 3;
        let draws = self.program.exported.draws_by_micro_batch();
        let rest = match draws.len().saturating_sub(SHOWN) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        let shown = draws[..draws.len().min(SHOWN)].join(", ");
        (!draws.is_empty())
            .then(|| format!("the program draws random numbers for each micro-batch in {shown}{rest}"))
    }

    /// Returns ", " and the outputs for training that are neither the main one nor auxiliary nor `used`; or nothing.
    pub(super) fn unused_outputs(&self, used: &[&str]) -> String {
        let is_used = |at: usize| self.bound.train.all().any(|used| used == at);
        let ports = self.ports(Mode::Train).iter().enumerate();
        let rest = ports.filter(|(at, port)| !is_used(*at) && !used.contains(&port.name.as_str()));
        match rest.map(|(_, port)| port.name.as_str()).collect::<Vec<_>>().join(", ") {
            rest if rest.is_empty() => rest,
            rest => format!(", outputs without effect: {rest}"),
        }
    }
}

/// Returns whether a length of an output is `length`, or smaller and enlarged to it; a dynamic one may be.
pub(super) fn enlarges(output: Option<i64>, length: usize) -> bool {
    output.is_none_or(|output| (1..=length as i64).contains(&output))
}

impl Forward for Network {
    fn output_names(&self) -> Vec<&str> {
        self.ports(Mode::Evaluate).iter().map(|port| port.name.as_str()).collect()
    }

    fn input_names(&self) -> Vec<&str> {
        self.fields().iter().map(String::as_str).collect()
    }

    fn inputs_of(&self, outputs: &[usize]) -> Vec<&str> {
        let taken: BTreeSet<usize> =
            outputs.iter().flat_map(|output| self.exported().inputs_of(*output)).copied().collect();
        taken.into_iter().map(|at| self.fields()[at].as_str()).collect()
    }

    fn forward(&self, batch: &Batch) -> Result<Vec<Tensor>, TaskError> {
        self.run_batch(batch, Mode::Evaluate)
    }
}

#[cfg(test)]
mod tests;
