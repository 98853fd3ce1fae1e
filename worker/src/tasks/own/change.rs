//! A user's own change of training images.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use dtrain_recipe::{Change, Recipe};
use tch::{Device, Tensor};

use super::{Given, OwnProgram, fields};
use crate::data::{Field, FieldKind, Numbered};
use crate::models::Port;
use crate::tasks::network::Ports;
use crate::tasks::samples::Sets;
use crate::tasks::{Batch, Facts, Mode, TaskError};
use crate::tensors::is_floating;

/// The input with the random numbers of each sample.
const NUMBERS: &str = "u";
/// The field of an output without a name.
const IMAGE: &str = "image";

/// The program of the last of `data.changes`. It runs in evaluation mode on the images of a training batch.
pub(in crate::tasks) struct OwnChange {
    program: OwnProgram,
    /// The field that each output replaces.
    fields: Vec<Cow<'static, str>>,
}

impl OwnChange {
    /// Loads the program of a recipe, and gives the training samples its random numbers. None without one, and in a prediction.
    ///
    /// # Errors
    /// As [`OwnProgram::load`] and [`OwnProgram::bind`], and outputs that are no fields of the data.
    pub(in crate::tasks) fn of(
        recipe: &Recipe,
        sets: &mut Sets,
        device: Device,
    ) -> Result<Option<Self>, TaskError> {
        let changes = recipe.data.changes.iter().enumerate();
        let found = changes.rev().find_map(|(at, change)| Some((at, Change::file(change)?)));
        let Some((at, file)) = found.filter(|_| !sets.predicts) else { return Ok(None) };
        let program = OwnProgram::load(&format!("data.changes[{at}]"), file, device)?;
        if sets.train.groups().is_some() {
            return Err(program.error("it changes single images, and the samples are pairs or episodes; remove data.pairs or data.episodes"));
        }
        let numbers = program.exported.inputs().iter().find(|input| input.name == NUMBERS);
        let mut stated = BTreeMap::new();
        if let Some(port) = numbers {
            let [None, Some(count)] = port.shape[..] else {
                return Err(program
                    .error("the input `u` takes random numbers, N x K; import it again with --inputs u=K"));
            };
            sets.train = Arc::new(Numbered::new(Arc::clone(&sets.train), count as usize));
            stated.insert(NUMBERS.to_owned(), Numbered::FIELD.to_owned());
        }
        let program = program.bind(&Ports::none(device), sets.train.fields(), &stated)?;
        let fields = program.ports(Mode::Evaluate).iter().map(|port| replaced(port, sets.train.fields()));
        let fields = fields.collect::<Result<_, String>>().map_err(|reason| program.error(reason))?;
        program.check_sizes()?;
        Ok(Some(Self { program, fields }))
    }

    /// Adds its hash to what a run compares with its checkpoint.
    pub(in crate::tasks) fn add_to(&self, facts: &mut Facts) {
        self.program.add_to(facts);
    }

    /// Returns a training batch with changed images.
    fn changed(&self, batch: &Batch, mode: Mode) -> Result<Batch, TaskError> {
        let no_output = |_: usize| -> Result<Tensor, TaskError> { Ok(batch.weights.shallow_clone()) };
        let given = Given { output: &no_output, field: &|name| fields(batch, name), mode };
        let values = tch::no_grad(|| self.program.run(&given, None, false))?;
        let mut changed = batch.clone();
        for (name, value) in self.fields.iter().zip(values) {
            let place = changed.fields.iter_mut().find(|(known, _)| known == name);
            if let Some((_, field)) = place {
                // Samples that could not be read stay 0.
                let lengths: Vec<i64> =
                    std::iter::once(-1).chain(std::iter::repeat_n(1, value.dim() - 1)).collect();
                *field = value
                    .f_to_kind(field.kind())?
                    .f_masked_fill(&batch.weights.f_eq(0.0)?.f_view(lengths.as_slice())?, 0.0)?;
            }
        }
        Ok(changed)
    }
}

/// Returns the batch that a task computes: a training batch with changed images.
pub(in crate::tasks) fn with_change<'a>(
    own: Option<&OwnChange>,
    batch: &'a Batch,
    mode: Mode,
) -> Result<Cow<'a, Batch>, TaskError> {
    match own.filter(|_| mode == Mode::Train) {
        Some(own) => own.changed(batch, mode).map(Cow::Owned),
        None => Ok(Cow::Borrowed(batch)),
    }
}

/// Returns the field that an output replaces.
fn replaced(port: &Port, fields: &[Field]) -> Result<Cow<'static, str>, String> {
    let name = if port.name == "output" { IMAGE } else { &port.name };
    let known = fields.iter().filter(|field| field.name != Numbered::FIELD);
    let Some(field) = known.clone().find(|field| field.name == name) else {
        let names = known.map(|field| format!("`{}`", field.name)).collect::<Vec<_>>().join(", ");
        return Err(format!(
            "it returns `{name}`, which is no field of the data; return a dict with some of {names}"
        ));
    };
    let is_kind = match field.kind {
        FieldKind::F32 => is_floating(port.kind),
        FieldKind::I64 => port.kind == tch::Kind::Int64,
    };
    let is_shape = port.shape.len() == field.shape.len() + 1
        && port.shape.first() == Some(&None)
        && port.shape.iter().skip(1).zip(&field.shape).all(|(a, b)| a.is_none_or(|a| a == *b as i64));
    match is_kind && is_shape {
        true => Ok(field.name.clone()),
        false => Err(format!(
            "it returns `{name}` of another type or shape than the field, {:?} for each sample; return the same, such as float32",
            field.shape
        )),
    }
}
