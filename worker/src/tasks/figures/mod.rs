//! `model.figures`: figures of evaluations, of a network's outputs and fields of the data.

mod binding;
mod value;

use dtrain_parts::figures::program::mean_of_quotients;
use dtrain_parts::figures::rows::ByRows;
use dtrain_parts::figures::{Figure, Made, OfClasses, Source, named};
use dtrain_recipe::Figure as Settings;
use tch::{Device, Kind, Tensor};

use super::network::OutputAt;
use super::own::OwnFigure;
use super::{Batch, TaskError};
use value::Value;

pub(super) use binding::{Given, known_classes};
pub(super) use value::planes;

/// The figures of a recipe, bound to a network and its data.
#[derive(Default)]
pub(super) struct Figures(Vec<Bound>);

struct Bound {
    settings: Settings,
    /// The name, then those of further numbers.
    names: Vec<String>,
    values: Vec<Value>,
    /// The user's own figure; None in a prediction, which has no figures.
    own: Option<OwnFigure>,
    /// The names of the classes or numbers, for figures with sums of each.
    classes: Vec<String>,
    /// Whether a sample has many elements, such as pixels. Their rows are too many to keep.
    has_elements: bool,
}

/// What a task gives of a batch.
pub(super) struct Of<'a> {
    /// Returns an output of the network by number.
    pub(super) output: OutputAt<'a>,
    /// Returns an output, in the form of its figure, in the unit of the task's target; None if it has that unit.
    pub(super) in_unit: Option<InUnit<'a>>,
    /// The sum of the losses of a text's targets.
    pub(super) nats: Option<&'a Tensor>,
    pub(super) batch: &'a Batch,
}

impl Of<'_> {
    /// Returns an output, the main one in the unit of the task's target.
    fn in_unit_of(&self, at: usize, main: usize) -> Result<Tensor, TaskError> {
        let output = (self.output)(at)?;
        match self.in_unit.filter(|_| at == main) {
            Some(in_unit) => in_unit(&output),
            None => Ok(output),
        }
    }
}

/// Returns values in another unit.
pub(super) type InUnit<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor, TaskError>;

/// Returns the output that a figure compares with a field, and the field; None if it names none.
pub(super) fn compared(settings: &Settings) -> Option<(&str, &str)> {
    let (mut output, mut field) = (None, None);
    for source in named(settings).takes() {
        match source {
            Source::Output(name) => output = output.or(name),
            Source::Classes(name) | Source::Mask(name) | Source::Numbers(name) => field = field.or(name),
            Source::Nats | Source::Bytes => {}
        }
    }
    output.zip(field)
}

impl Figures {
    /// Binds the figures of a recipe by name.
    pub(super) fn bind(all: &[Settings], given: &Given<'_>) -> Result<Self, TaskError> {
        all.iter().map(|settings| Bound::new(settings, given)).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether there are no figures.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names of the outputs that figures take by name.
    pub(super) fn outputs(&self) -> Vec<&str> {
        let own = self.0.iter().filter_map(|bound| bound.own.as_ref()).flat_map(OwnFigure::outputs);
        self.0.iter().flat_map(|bound| binding::outputs(bound.figure())).chain(own).collect()
    }

    /// Returns whether one takes an output.
    pub(super) fn takes_outputs(&self) -> bool {
        let takes = |value: &Value| matches!(value, Value::Output(..));
        self.0.iter().any(|bound| bound.own.is_some() || bound.values.iter().any(takes))
    }

    /// Returns all names in the order of the recipe.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|bound| &bound.names).map(String::as_str)
    }

    /// Returns the number of sums.
    pub(super) fn sums(&self) -> usize {
        self.0.iter().map(Bound::sums).sum()
    }

    /// Returns the sums of a batch: float64.
    pub(super) fn add(&self, of: &Of<'_>) -> Result<Tensor, TaskError> {
        let mut found = vec![Tensor::f_zeros([0], (Kind::Double, of.batch.weights.device()))?];
        for bound in self.0.iter().filter(|bound| bound.sums() > 0) {
            let values = bound.values(of)?;
            let (values, weights) = (values.iter().collect::<Vec<_>>(), &of.batch.weights);
            let sums = match bound.figure().made() {
                Made::BySums(figure) => figure.add(&values, weights)?,
                Made::ByClasses(figure) => figure.add(&values, weights, bound.classes.len())?,
                Made::ByRows(figure) => {
                    let rows = figure.rows(&values, weights)?.f_to_device(Device::Cpu)?.f_reshape([-1])?;
                    Tensor::f_from_slice(&figure.sums(&Vec::try_from(&rows)?))?
                }
                Made::Own(_) => match &bound.own {
                    Some(own) => own.add(&|at| of.in_unit_of(at, own.main()), of.batch)?,
                    None => continue,
                },
            };
            found.push(sums.f_to_device(weights.device())?);
        }
        Ok(Tensor::f_cat(&found, 0)?)
    }

    /// Returns the figures that are made of sums, in the order of the recipe.
    pub(super) fn figures(&self, sums: &[f64]) -> Vec<(String, f64)> {
        let mut all = Vec::new();
        for (bound, own) in self.each(sums) {
            let (figure, further) = match bound.figure().made() {
                Made::BySums(figure) => (figure.figure(own), figure.further(own)),
                Made::ByClasses(figure) => (figure.figure(own), figure.further(own)),
                Made::Own(_) => (mean_of_quotients(own), Vec::new()),
                Made::ByRows(figure) => {
                    all.push((format!("{}_binned", bound.names[0]), figure.of_sums(own)));
                    continue;
                }
            };
            all.extend(bound.names.iter().cloned().zip([figure].into_iter().chain(further)));
        }
        all
    }

    /// Returns the figures that have a value for each class.
    pub(super) fn by_class(&self, sums: &[f64]) -> Vec<OfClasses> {
        let of = |(bound, own): (&Bound, &[f64])| match bound.figure().made() {
            Made::ByClasses(figure) if bound.classes.len() > 1 => Some(OfClasses {
                figure: bound.names[0].clone(),
                classes: bound.classes.clone(),
                values: figure.by_class(own),
                confusion: figure.matrix(own),
            }),
            _ => None,
        };
        self.each(sums).filter_map(of).collect()
    }

    /// Returns each figure that is made of sums, with its own.
    fn each<'a>(&'a self, mut sums: &'a [f64]) -> impl Iterator<Item = (&'a Bound, &'a [f64])> {
        self.0.iter().filter(|bound| bound.sums() > 0).map(move |bound| {
            let (own, rest) = sums.split_at(bound.sums());
            sums = rest;
            (bound, own)
        })
    }

    /// Returns the figures that are made of rows.
    pub(super) fn by_rows(&self) -> Vec<(&str, &dyn ByRows)> {
        self.of_rows().map(|(bound, figure)| (bound.names[0].as_str(), figure)).collect()
    }

    /// Returns the rows of a batch for each of [`Figures::by_rows`].
    pub(super) fn rows(&self, of: &Of<'_>) -> Result<Vec<Tensor>, TaskError> {
        let rows = |(bound, figure): (&Bound, &dyn ByRows)| {
            let values = bound.values(of)?;
            Ok(figure.rows(&values.iter().collect::<Vec<_>>(), &of.batch.weights)?)
        };
        self.of_rows().map(rows).collect()
    }

    fn of_rows(&self) -> impl Iterator<Item = (&Bound, &dyn ByRows)> {
        self.0.iter().filter(|bound| !bound.has_elements).filter_map(|bound| match bound.figure().made() {
            Made::ByRows(figure) => Some((bound, figure)),
            _ => None,
        })
    }
}

impl Bound {
    fn figure(&self) -> &dyn Figure {
        named(&self.settings)
    }

    /// Returns the number of sums: of rows that are kept none.
    fn sums(&self) -> usize {
        match self.figure().made() {
            Made::BySums(figure) => figure.sums(),
            Made::ByClasses(figure) => figure.sums(self.classes.len()),
            Made::ByRows(figure) if self.has_elements => figure.sums(&[]).len(),
            Made::ByRows(_) => 0,
            Made::Own(_) => self.own.as_ref().map_or(0, OwnFigure::sums),
        }
    }

    fn values(&self, of: &Of<'_>) -> Result<Vec<Tensor>, TaskError> {
        self.values.iter().map(|value| value.of(of)).collect()
    }
}

#[cfg(test)]
mod tests;
