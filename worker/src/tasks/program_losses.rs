//! `model.losses`: losses over all samples of a step, of a program's outputs and fields of the data.

use dtrain_parts::losses;
use dtrain_recipe::StepLoss as Settings;
use tch::{Kind, TchError, Tensor};

use super::network::{Network, named_output, unfit_output};
use super::program_error::Unfit;
use super::{Batch, Mode, StepValue, TaskError};
use crate::data::{Field, FieldKind};
use crate::models::Port;
use crate::tensors::is_floating;

/// The key of a recipe.
const KEY: &str = "model.losses";

/// The losses of a recipe, bound to a program and its data.
pub(super) struct Losses {
    losses: Vec<Bound>,
    sources: Vec<Source>,
    values: Vec<StepValue>,
}

/// A loss, and which of the values it takes, in the order of its function.
struct Bound {
    settings: Settings,
    weight: f64,
    values: Vec<usize>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq)]
enum Source {
    /// The numbers of an output in training and in evaluations.
    Output {
        train: usize,
        evaluate: usize,
    },
    Field(String),
}

/// What a loss takes by this name.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wanted {
    /// An output of N x D.
    Vectors,
    /// An output of N x ... x E.
    Gates,
    /// An output that is one number.
    Number,
    /// A field of N classes.
    Classes,
}

impl Wanted {
    fn words(self) -> &'static str {
        match self {
            Self::Vectors => "the loss takes one vector for each sample, N x D",
            Self::Gates => {
                "the loss takes a number for each expert in the last dimension, N x ... x E with fixed lengths"
            }
            Self::Number => "the loss takes one number for all samples",
            Self::Classes => "",
        }
    }

    /// Returns the shape of one sample's value, if this is one.
    fn shape(self, output: &[Option<i64>]) -> Option<Vec<i64>> {
        let known = |shape: &[Option<i64>]| shape.iter().copied().collect::<Option<Vec<i64>>>();
        match (self, output) {
            (Self::Number, [] | [Some(1)]) => known(output),
            (Self::Vectors, [None, Some(_)]) | (Self::Gates, [None, .., Some(_)]) => known(&output[1..]),
            _ => None,
        }
    }
}

/// Returns the weight of a loss, and the names of what it takes.
fn taken(settings: &Settings) -> (f64, Vec<(&str, Wanted)>) {
    use Wanted::{Classes, Gates, Number, Vectors};
    match settings {
        Settings::Clip(it) => {
            (it.weight, vec![(&it.left, Vectors), (&it.right, Vectors), (&it.scale, Number)])
        }
        Settings::Siglip(it) => (
            it.weight,
            vec![(&it.left, Vectors), (&it.right, Vectors), (&it.scale, Number), (&it.bias, Number)],
        ),
        Settings::Supcon(it) => (it.weight, vec![(&it.vectors, Vectors), (&it.classes, Classes)]),
        Settings::Balance(it) => (it.weight, vec![(&it.gates, Gates)]),
    }
}

/// Returns the mean loss over the samples.
fn mean(settings: &Settings, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
    match (settings, values) {
        (Settings::Clip(_), [left, right, scale]) => losses::clip(left, right, scale, weights),
        (Settings::Siglip(_), [left, right, scale, bias]) => {
            losses::siglip(left, right, scale, bias, weights)
        }
        (Settings::Supcon(it), [vectors, classes]) => {
            losses::supcon(vectors, classes, it.temperature, weights)
        }
        (Settings::Balance(_), [gates]) => losses::balance(gates, weights),
        _ => Err(TchError::Convert(format!("a loss of {} values; this is a bug of dtrain", values.len()))),
    }
}

/// Returns the names of all outputs that the losses take, if the program has them.
pub(super) fn outputs<'a>(all: &'a [Settings], ports: &[Port]) -> Result<Vec<&'a str>, Unfit> {
    let taken = all.iter().flat_map(|settings| taken(settings).1);
    let names = taken.filter(|(_, wanted)| *wanted != Wanted::Classes).map(|(name, _)| name);
    names.map(|name| named_output(ports, name, KEY).map(|_| name)).collect()
}

impl Losses {
    /// Binds the losses of a recipe by name; None without any.
    pub(super) fn bind(all: &[Settings], network: &Network, fields: &[Field]) -> Result<Option<Self>, Unfit> {
        let mut bound = Self { losses: Vec::new(), sources: Vec::new(), values: Vec::new() };
        for settings in all {
            let (weight, names) = taken(settings);
            let values = names.into_iter().map(|(name, wanted)| bound.add(name, wanted, network, fields));
            let values = values.collect::<Result<_, _>>()?;
            bound.losses.push(Bound { settings: settings.clone(), weight, values });
        }
        Ok((!bound.losses.is_empty()).then_some(bound))
    }

    /// Returns the number of a value, which several losses may take.
    fn add(
        &mut self,
        name: &str,
        wanted: Wanted,
        network: &Network,
        fields: &[Field],
    ) -> Result<usize, Unfit> {
        let (source, value) = match wanted {
            Wanted::Classes => (Source::Field(name.to_owned()), class(name, fields)?),
            _ => {
                let [train, evaluate] = [Mode::Train, Mode::Evaluate].map(|mode| network.ports(mode));
                let (train, value) = output(name, wanted, train, KEY)?;
                let (at, tested) = output(name, wanted, evaluate, "in evaluation model.losses")?;
                if tested != value {
                    return Err(unfit_output(&evaluate[at], "the loss takes the same shape as in training"));
                }
                (Source::Output { train, evaluate: at }, value)
            }
        };
        if let Some(known) = self.sources.iter().position(|known| *known == source) {
            return Ok(known);
        }
        self.sources.push(source);
        self.values.push(value);
        Ok(self.sources.len() - 1)
    }

    pub(super) fn values(&self) -> &[StepValue] {
        &self.values
    }

    /// Returns whether a loss takes the output of this name.
    pub(super) fn takes(&self, name: &str) -> bool {
        let all = self.losses.iter().flat_map(|loss| taken(&loss.settings).1);
        all.filter(|(_, wanted)| *wanted != Wanted::Classes).any(|(taken, _)| taken == name)
    }

    /// Returns the values of a batch. `output` gives an output of the program by number.
    pub(super) fn of_batch(
        &self,
        output: &dyn Fn(usize) -> Result<Tensor, TaskError>,
        batch: &Batch,
        mode: Mode,
    ) -> Result<Vec<Tensor>, TaskError> {
        let value = |source: &Source| match (source, mode) {
            (Source::Output { train: at, .. }, Mode::Train)
            | (Source::Output { evaluate: at, .. }, Mode::Evaluate) => output(*at),
            (Source::Field(name), _) => Ok(batch.field(name)?.shallow_clone()),
        };
        self.sources.iter().map(value).collect()
    }

    /// Returns the weighted sum of the mean losses.
    pub(super) fn mean(&self, values: &[Tensor], weights: &Tensor) -> Result<Tensor, TaskError> {
        let mut sum = Tensor::f_zeros([] as [i64; 0], (Kind::Float, weights.device()))?;
        for loss in &self.losses {
            let values: Vec<_> = loss.values.iter().map(|&at| &values[at]).collect();
            let mean = mean(&loss.settings, &values, weights)?.f_reshape([] as [i64; 0])?;
            sum = sum.f_add(&mean.f_mul_scalar(loss.weight)?)?;
        }
        Ok(sum)
    }
}

fn output(
    name: &str,
    wanted: Wanted,
    ports: &[Port],
    key: &'static str,
) -> Result<(usize, StepValue), Unfit> {
    let at = named_output(ports, name, key)?;
    let shape = wanted.shape(&ports[at].shape).filter(|_| is_floating(ports[at].kind));
    let shape = shape.ok_or_else(|| unfit_output(&ports[at], wanted.words()))?;
    Ok((at, StepValue { kind: Kind::Float, shape, is_of_sample: wanted != Wanted::Number }))
}

fn class(name: &str, fields: &[Field]) -> Result<StepValue, Unfit> {
    let is_class = |field: &&Field| field.kind == FieldKind::I64 && field.shape.is_empty();
    let classes: Vec<String> = fields.iter().filter(is_class).map(|field| field.name.to_string()).collect();
    match classes.iter().any(|known| known == name) {
        true => Ok(StepValue { kind: Kind::Int64, shape: Vec::new(), is_of_sample: true }),
        false => Err(Unfit::NoClasses { name: name.to_owned(), classes }),
    }
}
