//! `model.losses`: losses over all samples of a step, of a program's outputs and fields of the data.

use dtrain_parts::Wanted;
use dtrain_parts::losses::over_step;
use dtrain_recipe::StepLoss as Settings;
use tch::{Kind, Tensor};

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

/// A loss, and which of the values it takes, in its order.
struct Bound {
    settings: Settings,
    values: Vec<usize>,
}

/// The origin of a value.
#[derive(Debug, Clone, PartialEq)]
enum Source {
    /// The numbers of an output in training and in evaluations.
    Output {
        train: usize,
        evaluate: usize,
    },
    Field(String),
}

/// Returns the names of all outputs that the losses take, if the program has them.
pub(super) fn outputs<'a>(all: &'a [Settings], ports: &[Port]) -> Result<Vec<&'a str>, Unfit> {
    let taken = all.iter().flat_map(|settings| over_step(settings).takes());
    let names = taken.filter(|(_, wanted)| wanted.is_output()).map(|(name, _)| name);
    names.map(|name| named_output(ports, name, KEY).map(|_| name)).collect()
}

impl Losses {
    /// Binds the losses of a recipe by name; None without any.
    pub(super) fn bind(all: &[Settings], network: &Network, fields: &[Field]) -> Result<Option<Self>, Unfit> {
        let mut bound = Self { losses: Vec::new(), sources: Vec::new(), values: Vec::new() };
        for settings in all {
            let names = over_step(settings).takes();
            let values = names.into_iter().map(|(name, wanted)| bound.add(name, wanted, network, fields));
            let values = values.collect::<Result<_, _>>()?;
            bound.losses.push(Bound { settings: settings.clone(), values });
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
        let (source, value) = match wanted.is_output() {
            false => (Source::Field(name.to_owned()), class(name, fields)?),
            true => {
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
        let mut all = self.losses.iter().flat_map(|loss| over_step(&loss.settings).takes());
        all.any(|(taken, wanted)| wanted.is_output() && taken == name)
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
            let mean = over_step(&loss.settings).mean(&values, weights)?.f_reshape([] as [i64; 0])?;
            sum = sum.f_add(&mean.f_mul_scalar(loss.settings.weight())?)?;
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
    let shape = wanted.of_sample(&ports[at].shape).filter(|_| is_floating(ports[at].kind));
    let shape =
        shape.ok_or_else(|| unfit_output(&ports[at], &format!("the loss takes {}", wanted.words())))?;
    let is_of_sample = !matches!(wanted, Wanted::Number);
    Ok((at, StepValue { kind: Kind::Float, shape, is_of_sample }))
}

fn class(name: &str, fields: &[Field]) -> Result<StepValue, Unfit> {
    let is_class = |field: &&Field| field.kind == FieldKind::I64 && field.shape.is_empty();
    let classes: Vec<String> = fields.iter().filter(is_class).map(|field| field.name.to_string()).collect();
    match classes.iter().any(|known| known == name) {
        true => Ok(StepValue { kind: Kind::Int64, shape: Vec::new(), is_of_sample: true }),
        false => Err(Unfit::NoClasses { key: KEY.to_owned(), name: name.to_owned(), classes }),
    }
}
