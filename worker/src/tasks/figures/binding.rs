//! The figures of a recipe, bound by name to outputs of a network and fields of the data.

use dtrain_parts::figures::{Figure, Made, Shape, Source, named};
use dtrain_recipe::Figure as Settings;
use tch::Tensor;

use super::Bound;
use super::value::{FieldForm, OutputForm, Value};
use crate::data::{Field, FieldKind, Numbered};
use crate::models::Port;
use crate::tasks::network::{Ports, enlarges, named_output, unfit_output};
use crate::tasks::own::OwnFigure;
use crate::tasks::program_error::Unfit;
use crate::tasks::samples::Sets;
use crate::tasks::{Mode, TaskError};
use crate::tensors::is_floating;

/// The key of a recipe.
const KEY: &str = "model.figures";

/// A network in evaluation and its data, to which figures are bound.
pub(in crate::tasks) struct Given<'a> {
    pub(in crate::tasks) ports: Ports<'a>,
    /// The field that the main output predicts in another unit, if it does.
    pub(in crate::tasks) own: Option<&'a str>,
    pub(in crate::tasks) sets: &'a Sets,
    /// The value of mask pixels that do not count.
    pub(in crate::tasks) ignore: i64,
    /// The bytes of each token, float64, or why they are not known.
    pub(in crate::tasks) bytes: Result<&'a Tensor, String>,
}

impl<'a> Given<'a> {
    pub(in crate::tasks) fn of(ports: Ports<'a>, sets: &'a Sets, ignore: i64) -> Self {
        let bytes = Err("it takes the targets of task = \"lm\"; remove it".to_owned());
        Self { ports, own: None, sets, ignore, bytes }
    }

    fn field(&self, name: Option<&str>, fits: impl Fn(&Field) -> bool) -> Result<&Field, Vec<String>> {
        let own = self.sets.train.fields().iter().filter(|field| field.name != Numbered::FIELD);
        let mut all = own.filter(|field| fits(field));
        let names = all.clone().map(|field| field.name.to_string()).collect();
        all.find(|field| Some(&*field.name) == name).ok_or(names)
    }
}

/// The target of a figure: its field, and in which form output and field meet.
struct Target {
    name: String,
    /// The shape of the form.
    shape: Shape,
    meets: Meets,
}

enum Meets {
    Samples,
    /// Sets of classes.
    Sets,
    /// The tokens of texts.
    Tokens,
    /// The pixels of masks of height and width, one after the other.
    Pixels([usize; 2]),
    Planes([usize; 2]),
    Vector,
    Map([usize; 2]),
}

impl Bound {
    pub(super) fn new(settings: &Settings, given: &Given<'_>) -> Result<Self, TaskError> {
        let key = format!("{KEY} ({})", settings.label());
        let own = match named(settings).made() {
            Made::Own(program) => OwnFigure::of(&key, program, &given.ports, given.sets)?,
            _ => None,
        };
        let bound = Self::known(settings, key, given).map_err(|unfit| given.ports.unfit(unfit))?;
        Ok(Self { own, ..bound })
    }

    /// Binds a figure that is no program of the user.
    fn known(settings: &Settings, key: String, given: &Given<'_>) -> Result<Self, Unfit> {
        let figure = named(settings);
        let (outputs, main) = (given.ports.evaluate, given.ports.main_at(Mode::Evaluate));
        let target = target(&key, figure, given)?;
        let (mut values, mut shapes, mut first) = (Vec::new(), Vec::new(), None);
        for source in figure.takes() {
            match source {
                Source::Output(name) => {
                    let at = name.map_or(Ok(main), |name| named_output(outputs, name, &key))?;
                    let port = &outputs[at];
                    if name.is_none() && !given.ports.takes_main {
                        let remedy = "no figure takes it by default; set output to the one with the scores";
                        return Err(unfit_output(port, &format!("{remedy} ({key})")));
                    }
                    if !is_floating(port.kind) {
                        let expected = format!("a figure takes numbers of a floating-point type ({key})");
                        return Err(unfit_output(port, &expected));
                    }
                    let (form, shape) = match &target {
                        Some(target) => target.output(port, &key)?,
                        None => (OutputForm::AsIs, port.shape.clone()),
                    };
                    let is_own = match &target {
                        Some(target) => given.own == Some(target.name.as_str()),
                        None => at == main,
                    };
                    values.push(Value::Output(at, form, is_own));
                    shapes.push(shape);
                    first = first.or(Some(port));
                }
                Source::Classes(_) | Source::Mask(_) | Source::Numbers(_) => {
                    if let Some(target) = &target {
                        values.push(Value::Field(target.name.clone(), target.form(given.ignore)));
                        shapes.push(target.shape.clone());
                    }
                }
                Source::Nats => values.push(Value::Nats),
                Source::Bytes => {
                    let unknown =
                        |reason: &String| Unfit::NoBytes { key: key.clone(), reason: reason.clone() };
                    let bytes = given.bytes.as_ref().map_err(unknown)?;
                    values.push(Value::Bytes("targets".to_owned(), bytes.shallow_clone()));
                }
            }
        }
        let has_sets = target.as_ref().is_some_and(|target| matches!(target.meets, Meets::Sets));
        let known = target.as_ref().and_then(|target| known_classes(&target.name, given.sets));
        let checked = if has_sets { figure.check_sets(&shapes) } else { figure.check(&shapes, known) };
        if let Some(port) = first {
            checked.map_err(|expected| unfit_output(port, &format!("{expected} ({key})")))?;
        }
        let classes = target.as_ref().map_or(Vec::new(), |target| target.classes(&shapes, known, given.sets));
        let has_elements = target.is_some_and(|target| {
            matches!(target.meets, Meets::Tokens | Meets::Pixels(_)) || target.shape.len() > 1 && !has_sets
        });
        Ok(Self {
            settings: settings.clone(),
            names: settings.names(),
            values,
            own: None,
            classes,
            has_elements,
        })
    }
}

/// Returns the target of a figure; None if it takes none.
fn target(key: &str, figure: &dyn Figure, given: &Given<'_>) -> Result<Option<Target>, Unfit> {
    let missing = |what, setting, name: Option<&str>, fields| {
        let (key, name) = (key.to_owned(), name.map(str::to_owned));
        Unfit::NoTarget { key, what, setting, name, fields }
    };
    let (name, found, meets) =
        match figure.takes().into_iter().find(|source| !matches!(source, Source::Output(_))) {
            Some(Source::Classes(name)) => {
                let found = given.field(name, |field| has_classes(field, given.sets));
                let no_classes = |classes| {
                    let name = name.unwrap_or_default().to_owned();
                    Unfit::NoClasses { key: key.to_owned(), name, classes }
                };
                let field = found.map_err(no_classes)?;
                let meets = match (field.kind, &field.shape[..]) {
                    (FieldKind::F32, _) => Meets::Sets,
                    (_, &[height, width]) => Meets::Pixels([height, width]),
                    _ if known_classes(&field.name, given.sets).is_none()
                        && given.sets.vocabulary.is_some() =>
                    {
                        Meets::Tokens
                    }
                    _ => Meets::Samples,
                };
                (name, Ok(field), meets)
            }
            Some(Source::Mask(name)) => {
                let found =
                    given.field(name, is_mask).map_err(|fields| missing("masks", "classes", name, fields));
                let size = found.as_ref().map_or([0, 0], |field| [field.shape[0], field.shape[1]]);
                (name, found, Meets::Planes(size))
            }
            Some(Source::Numbers(name)) => {
                let is_number = |field: &Field| field.kind == FieldKind::F32 && field.shape.len() <= 2;
                let found =
                    given.field(name, is_number).map_err(|fields| missing("numbers", "target", name, fields));
                let meets = match found.as_ref().map(|field| &field.shape[..]) {
                    Ok(&[height, width]) => Meets::Map([height, width]),
                    _ => Meets::Vector,
                };
                (name, found, meets)
            }
            _ => return Ok(None),
        };
    let (field, own) = (found?, name.unwrap_or_default());
    let shape: Vec<_> = field.shape.iter().map(|length| Some(*length as i64)).collect();
    let shape = match &meets {
        Meets::Pixels(_) => vec![None, None],
        Meets::Vector => vec![None, Some(shape.first().copied().flatten().unwrap_or(1))],
        Meets::Map(_) => [vec![None, Some(1)], shape].concat(),
        _ => [vec![None], shape].concat(),
    };
    Ok(Some(Target { name: own.to_owned(), shape, meets }))
}

impl Target {
    /// Returns what is made of the field.
    fn form(&self, ignore: i64) -> FieldForm {
        match self.meets {
            Meets::Samples | Meets::Sets | Meets::Tokens => FieldForm::AsIs,
            Meets::Pixels(_) => FieldForm::Pixels(ignore),
            Meets::Planes(_) => FieldForm::Mask(ignore),
            Meets::Vector => FieldForm::Vector,
            Meets::Map(_) => FieldForm::Map,
        }
    }

    /// Returns what is made of an output, and its shape then.
    fn output(&self, port: &Port, key: &str) -> Result<(OutputForm, Shape), Unfit> {
        let fits =
            |h: Option<i64>, w: Option<i64>, size: &[usize; 2]| enlarges(h, size[0]) && enlarges(w, size[1]);
        let lengths = |size: &[usize; 2]| size.map(|length| length as i64);
        Ok(match (&self.meets, &port.shape[..]) {
            (Meets::Samples | Meets::Sets | Meets::Tokens, shape) => (OutputForm::AsIs, shape.to_vec()),
            (Meets::Pixels(size) | Meets::Planes(size), &[None, h, w]) if fits(h, w, size) => {
                self.planes(size, Some(2))
            }
            (Meets::Pixels(size) | Meets::Planes(size), &[None, k, h, w]) if fits(h, w, size) => {
                self.planes(size, k.map(|k| k.max(2)))
            }
            (Meets::Pixels([height, width]) | Meets::Planes([height, width]), _) => {
                let of = format!(
                    "masks of {height} x {width} pixels take logits, N x K x {height} x {width} or smaller"
                );
                return Err(unfit_output(port, &format!("{of} ({key})")));
            }
            (Meets::Vector, &[None]) if self.shape[1] == Some(1) => (OutputForm::Vector, vec![None, Some(1)]),
            (Meets::Vector, &[None, k]) if k.is_none() || k == self.shape[1] => {
                (OutputForm::Vector, self.shape.clone())
            }
            (Meets::Map(size), &[None, h, w] | &[None, Some(1), h, w]) if fits(h, w, size) => {
                (OutputForm::Map(lengths(size)), self.shape.clone())
            }
            (Meets::Vector | Meets::Map(_), _) => {
                let numbers: Vec<_> = self.shape[1..].iter().flatten().map(ToString::to_string).collect();
                let of = format!(
                    "the target has N x {}; set output to numbers of this shape",
                    numbers.join(" x ")
                );
                return Err(unfit_output(port, &format!("{of} ({key})")));
            }
        })
    }

    fn planes(&self, size: &[usize; 2], classes: Option<i64>) -> (OutputForm, Shape) {
        let lengths = size.map(|length| length as i64);
        match self.meets {
            Meets::Planes(_) => {
                (OutputForm::Planes(lengths), vec![None, classes, Some(lengths[0]), Some(lengths[1])])
            }
            _ => (OutputForm::Pixels(lengths), vec![None, None, classes]),
        }
    }

    /// Returns the names of the classes or numbers. `known`: how many classes the data has, if it states that.
    fn classes(&self, shapes: &[Shape], known: Option<usize>, sets: &Sets) -> Vec<String> {
        let last = |at: usize| shapes.get(at).and_then(|shape| *shape.last()?).map(|length| length as usize);
        let count = match self.meets {
            Meets::Vector => last(1),
            Meets::Map(_) => Some(1),
            // The field has the number of sets of classes, else the data; the classes of an episode are those of the logits.
            Meets::Sets => last(1),
            _ => known.or(last(0)),
        };
        let count = count.unwrap_or(0);
        let own =
            if ["label", "mask"].contains(&self.name.as_str()) { &sets.class_names } else { &sets.numbers };
        let others = sets.other_classes.get(&self.name).or(sets.mask_classes.get(&self.name));
        let names = others.unwrap_or(own);
        match names.len() == count {
            true => names.clone(),
            false => (0..count).map(|number| number.to_string()).collect(),
        }
    }
}

/// Returns the names of the outputs that a figure takes by name.
pub(super) fn outputs(figure: &dyn Figure) -> Vec<&str> {
    let name = |source| if let Source::Output(name) = source { name } else { None };
    figure.takes().into_iter().filter_map(name).collect()
}

fn is_mask(field: &Field) -> bool {
    field.kind == FieldKind::I64 && field.shape.len() == 2
}

/// Returns whether a field holds classes: of whole samples, also of a partner's or of an episode's; of pixels; or the targets of texts.
fn has_classes(field: &Field, sets: &Sets) -> bool {
    let name = &*field.name;
    let single = ["pair_", "support_", "query_"].into_iter().find_map(|prefix| name.strip_prefix(prefix));
    let is_known = [Some(name), single].into_iter().flatten().any(|name| known_classes(name, sets).is_some());
    let is_text = sets.vocabulary.is_some() && name == "targets" && field.kind == FieldKind::I64;
    is_mask(field) || is_known || is_text
}

/// Returns the number of classes in a field, if the data states it. An episode has others.
pub(in crate::tasks) fn known_classes(name: &str, sets: &Sets) -> Option<usize> {
    // The classes of a text's data are its tokens, unless it has labels.
    let is_own = name == "label" || (name == "mask" && sets.vocabulary.is_none());
    let own = (is_own && sets.classes > 0).then_some(sets.classes);
    sets.other_classes.get(name).or(sets.mask_classes.get(name)).map(Vec::len).or(own)
}
