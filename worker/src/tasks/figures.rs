//! `model.figures`: figures of evaluations, of a network's outputs and fields of the data.

use dtrain_parts::figures::{Figure, Made, Source, named};
use dtrain_recipe::Figure as Settings;
use tch::{Kind, TchError, Tensor};

use super::network::{Network, named_output, unfit_output};
use super::program_error::Unfit;
use super::row_figures::ByRows;
use super::samples::Sets;
use super::{Batch, Mode, TaskError};
use crate::data::FieldKind;
use crate::models::Port;
use crate::tensors::is_floating;

/// The key of a recipe.
const KEY: &str = "model.figures";

/// The figures of a recipe, bound to a network and its data.
pub(super) struct Figures(Vec<Bound>);

struct Bound {
    settings: Settings,
    label: String,
    values: Vec<Value>,
    /// The number of classes, for figures with sums of each.
    classes: usize,
}

/// The origin of a value.
enum Value {
    /// The numbers of an output in evaluation and, if it is there, in training.
    Output {
        evaluate: usize,
        train: Option<usize>,
    },
    Field(String),
}

/// The outputs of a network, and the numbers of the main ones in training and in evaluation.
pub(super) struct Ports<'a> {
    pub(super) train: &'a [Port],
    pub(super) evaluate: &'a [Port],
    pub(super) main: (usize, usize),
    /// Whether figures take the main output by default: that of a program is its loss, or no more than what a loss takes.
    pub(super) takes_main: bool,
}

impl<'a> Ports<'a> {
    pub(super) fn of(network: &'a Network, takes_main: bool) -> Self {
        Self {
            takes_main,
            train: network.ports(Mode::Train),
            evaluate: network.ports(Mode::Evaluate),
            main: (network.main_at(Mode::Train), network.main_at(Mode::Evaluate)),
        }
    }
}

/// Returns an output of a network by number.
type OutputAt<'a> = &'a dyn Fn(usize) -> Result<Tensor, TaskError>;

impl Figures {
    /// Binds the figures of a recipe by name.
    pub(super) fn bind(all: &[Settings], ports: &Ports<'_>, sets: &Sets) -> Result<Self, Unfit> {
        let bind =
            |settings: &Settings| Bound::new(&format!("{KEY} ({})", settings.label()), settings, ports, sets);
        all.iter().map(bind).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the names of the outputs that figures take by name.
    pub(super) fn outputs(&self) -> Vec<&str> {
        let sources = self.0.iter().flat_map(|bound| bound.figure().takes());
        let name = |source| if let Source::Output(name) = source { name } else { None };
        sources.filter_map(name).collect()
    }

    /// Returns the names in the order of the recipe.
    pub(super) fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|bound| bound.label.as_str())
    }

    /// Returns the number of sums.
    pub(super) fn sums(&self) -> usize {
        self.0.iter().map(Bound::sums).sum()
    }

    /// Returns the sums of a batch: of a figure whose output training lacks, 0 in training.
    pub(super) fn add(&self, output: OutputAt<'_>, batch: &Batch, mode: Mode) -> Result<Tensor, TaskError> {
        let mut found = Vec::new();
        for bound in &self.0 {
            let made = bound.figure().made();
            if matches!(made, Made::ByRows(_)) {
                continue;
            }
            let Some(values) = bound.values(output, batch, mode)? else {
                found.push(zeros(bound.sums(), batch)?);
                continue;
            };
            let values: Vec<_> = values.iter().collect();
            match made {
                Made::BySums(figure) => found.push(figure.add(&values, &batch.weights)?),
                Made::ByClasses(figure) => found.push(figure.add(&values, &batch.weights, bound.classes)?),
                Made::ByRows(_) => {}
            }
        }
        match found.len() {
            0 => Ok(zeros(0, batch)?),
            1 => Ok(found.remove(0)),
            _ => Ok(Tensor::f_cat(&found, 0)?),
        }
    }

    /// Returns the figures that are made of sums, in the order of the recipe.
    pub(super) fn figures(&self, mut sums: &[f64]) -> Vec<(&str, f64)> {
        let mut all = Vec::new();
        for bound in &self.0 {
            let (own, rest) = sums.split_at(bound.sums());
            let figure = match bound.figure().made() {
                Made::BySums(figure) => figure.figure(own),
                Made::ByClasses(figure) => figure.figure(own),
                Made::ByRows(_) => continue,
            };
            all.push((bound.label.as_str(), figure));
            sums = rest;
        }
        all
    }

    /// Returns the figures that are made of rows.
    pub(super) fn by_rows(&self) -> Vec<(&str, &dyn ByRows)> {
        let made = self.0.iter().map(|bound| (bound.label.as_str(), bound.figure().made()));
        made.filter_map(|(label, made)| if let Made::ByRows(it) = made { Some((label, it)) } else { None })
            .collect()
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.by_rows().is_empty()
    }

    /// Returns the rows of an evaluation's batch for each of [`Figures::by_rows`].
    pub(super) fn rows(&self, output: OutputAt<'_>, batch: &Batch) -> Result<Vec<Tensor>, TaskError> {
        let mut found = Vec::new();
        for bound in &self.0 {
            if let Made::ByRows(figure) = bound.figure().made()
                && let Some(values) = bound.values(output, batch, Mode::Evaluate)?
            {
                found.push(figure.rows(&values.iter().collect::<Vec<_>>(), &batch.weights)?);
            }
        }
        Ok(found)
    }
}

impl Bound {
    fn new(key: &str, settings: &Settings, ports: &Ports<'_>, sets: &Sets) -> Result<Self, Unfit> {
        let figure = named(settings);
        let (mut values, mut shapes, mut classes, mut first) = (Vec::new(), Vec::new(), None, None);
        let mut has_sets = false;
        for source in figure.takes() {
            match source {
                Source::Output(name) => {
                    let at = |ports, main| name.map_or(Ok(main), |name| named_output(ports, name, key));
                    let (train, evaluate) =
                        (at(ports.train, ports.main.0).ok(), at(ports.evaluate, ports.main.1)?);
                    let port = &ports.evaluate[evaluate];
                    if name.is_none() && !ports.takes_main {
                        let remedy = "no figure takes it by default; set output to the one with the scores";
                        return Err(unfit_output(port, &format!("{remedy} ({key})")));
                    }
                    let is_same = |at: &usize| {
                        let other = &ports.train[*at];
                        other.shape == port.shape && is_floating(other.kind)
                    };
                    values.push(Value::Output { evaluate, train: train.filter(is_same) });
                    shapes.push(port.shape.clone());
                    first = first.or(Some(port));
                }
                Source::Classes(name) => {
                    let (shape, is_set) = field_of_classes(key, name, sets)?;
                    shapes.push(shape);
                    has_sets |= is_set;
                    classes = classes.or_else(|| known_classes(name, sets));
                    values.push(Value::Field(name.to_owned()));
                }
            }
        }
        let checked = match has_sets {
            true => figure.check_sets(&shapes),
            false => figure.check(&shapes, classes),
        };
        if let Some(port) = first {
            if !is_floating(port.kind) {
                return Err(unfit_output(
                    port,
                    &format!("a figure takes numbers of a floating-point type ({key})"),
                ));
            }
            checked.map_err(|expected| unfit_output(port, &format!("{expected} ({key})")))?;
        }
        let length =
            |at: usize| shapes.get(at).and_then(|shape| *shape.get(1)?).map(|length| length as usize);
        // Of sets of classes the field has the number, else the data; the classes of an episode are those of the logits.
        let classes = if has_sets { length(1) } else { classes.or(length(0)) }.unwrap_or(0);
        Ok(Self { settings: settings.clone(), label: settings.label(), values, classes })
    }

    fn figure(&self) -> &dyn Figure {
        named(&self.settings)
    }

    fn sums(&self) -> usize {
        match self.figure().made() {
            Made::BySums(figure) => figure.sums(),
            Made::ByClasses(figure) => figure.sums(self.classes),
            Made::ByRows(_) => 0,
        }
    }

    /// Returns the values of a batch; None if an output is not there in training.
    fn values(
        &self,
        output: OutputAt<'_>,
        batch: &Batch,
        mode: Mode,
    ) -> Result<Option<Vec<Tensor>>, TaskError> {
        let value = |value: &Value| match (value, mode) {
            (Value::Output { evaluate: at, .. }, Mode::Evaluate)
            | (Value::Output { train: Some(at), .. }, Mode::Train) => output(*at).map(Some),
            (Value::Output { train: None, .. }, Mode::Train) => Ok(None),
            (Value::Field(name), _) => Ok(Some(batch.field(name)?.shallow_clone())),
        };
        self.values.iter().map(value).collect()
    }
}

fn zeros(sums: usize, batch: &Batch) -> Result<Tensor, TchError> {
    Tensor::f_zeros([sums as i64], (Kind::Double, batch.weights.device()))
}

/// Returns the shape of the classes in a field, with that of the samples, and whether each sample has a set of them.
fn field_of_classes(key: &str, name: &str, sets: &Sets) -> Result<(Vec<Option<i64>>, bool), Unfit> {
    let fields = sets.train.fields().iter();
    let mut all = fields.filter(|field| has_classes(&field.name, sets));
    let names = || all.clone().map(|field| field.name.to_string()).collect();
    let missing = Unfit::NoClasses { key: key.to_owned(), name: name.to_owned(), classes: names() };
    let field = all.find(|field| field.name == name).ok_or(missing)?;
    let shape = [None].into_iter().chain(field.shape.iter().map(|length| Some(*length as i64)));
    Ok((shape.collect(), field.kind == FieldKind::F32))
}

/// Returns whether a field holds classes of whole samples, also of a partner's or of an episode's. Masks and tokens have values
/// that are no class.
fn has_classes(field: &str, sets: &Sets) -> bool {
    let single = ["pair_", "support_", "query_"].into_iter().find_map(|prefix| field.strip_prefix(prefix));
    [Some(field), single].into_iter().flatten().any(|name| known_classes(name, sets).is_some())
}

/// Returns the number of classes in a field, if the data states it. An episode has others.
fn known_classes(name: &str, sets: &Sets) -> Option<usize> {
    let own = (name == "label" && sets.classes > 0).then_some(sets.classes);
    sets.other_classes.get(name).map(Vec::len).or(own)
}

#[cfg(test)]
mod tests;
