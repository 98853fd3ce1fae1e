//! `model.loss` of several outputs of a network, each with a field of the data, and a user's own: bound by name, and added for each
//! sample.

use dtrain_parts::losses::of_outputs::{Goal, losses};
use dtrain_parts::losses::of_samples::Term;
use dtrain_parts::losses::regression::Units;
use dtrain_parts::{Loss, Outputs};
use dtrain_recipe::{self as recipe, LossTerm, Recipe, SampleLoss, Target};
use tch::{Kind, TchError, Tensor};

use super::network::{OutputAt, Ports, check_output, enlarges, named_output};
use super::own::{OfBatch, OwnLoss, OwnLosses};
use super::program_error::Unfit;
use super::samples::{Sets, mask_rule};
use super::terms::term;
use super::{Batch, Facts, Mode, TaskError};
use crate::data::{Field, FieldKind, Numbered};
use crate::models::Port;

/// The losses of each stage, if it names an output or a field, or has a user's own loss; else None, and the task computes its own.
pub(super) struct OutputLosses {
    stages: Vec<Option<Vec<Bound>>>,
    current: usize,
    /// How much a sample weighs, so that derivatives keep their size if a stage has another loss.
    size: f64,
    /// Whether the task has a loss beside these.
    pub(super) has_others: bool,
    /// The field that the main output predicts, and its number.
    field: Option<String>,
    main: [usize; 2],
}

/// A loss with what it compares.
enum Bound {
    Known(Box<Known>),
    Own(Box<OwnLoss>),
}

impl Bound {
    fn outputs(&self) -> Vec<&str> {
        match self {
            Self::Own(own) => own.outputs(),
            Self::Known(known) => known.output.iter().map(|at| at.name.as_str()).collect(),
        }
    }
}

/// A loss of dtrain.
struct Known {
    term: Term,
    /// The output by number; None if it is the main one with the auxiliary ones.
    output: Option<At>,
    field: String,
    goal: Goal,
    /// None if they are those of the main output.
    units: Option<Units>,
}

/// The numbers of an output in training and, if the program has it there, in evaluation.
struct At {
    name: String,
    train: usize,
    evaluate: Option<usize>,
}

/// The task, network and data that losses are bound to.
pub(super) struct Binding<'a> {
    pub(super) recipe: &'a Recipe,
    pub(super) ports: Ports<'a>,
    pub(super) sets: &'a Sets,
    /// The field that the main output predicts; None if a program returns its loss.
    pub(super) field: Option<&'a str>,
    /// See [`Facts::weight_per_sample`](super::Facts::weight_per_sample).
    pub(super) size: f64,
}

/// Returns whether the losses of a stage are computed here. `has_target`: whether the task computes others itself.
fn is_here(loss: &recipe::Loss, has_target: bool) -> bool {
    if has_target { !loss.is_plain() } else { loss.is_of_named() }
}

/// Returns whether a program, which returns its loss, has others of outputs in some stage.
pub(super) fn has_some(recipe: &Recipe) -> bool {
    (0..recipe.stages()).any(|number| is_here(&recipe.of_stage(number).model.loss, false))
}

/// Returns the names of all outputs that losses name.
fn outputs(recipe: &Recipe) -> Vec<String> {
    let stages = (0..recipe.stages()).map(|number| recipe.of_stage(number).model.loss);
    stages
        .flat_map(|loss| loss.terms().iter().filter_map(|term| term.output.clone()).collect::<Vec<_>>())
        .collect()
}

/// Works as [`outputs`] for a program with these outputs.
pub(super) fn known_outputs(recipe: &Recipe, ports: &[Port]) -> Result<Vec<String>, Unfit> {
    let all = outputs(recipe);
    all.iter().try_for_each(|name| named_output(ports, name, "model.loss").map(drop))?;
    Ok(all)
}

impl OutputLosses {
    /// Loads the user's own losses, and binds the losses of all stages.
    pub(super) fn bind(binding: &Binding<'_>) -> Result<Self, TaskError> {
        let own = OwnLosses::load(binding.recipe, binding.sets, binding.ports.device)?;
        Self::bind_loaded(binding, own)
    }

    /// Works as [`OutputLosses::bind`] with the user's own losses.
    pub(super) fn bind_loaded(binding: &Binding<'_>, mut own: OwnLosses) -> Result<Self, TaskError> {
        let mut stages = Vec::new();
        // For later stages see `begin`.
        for number in 0..binding.recipe.stages() {
            let (loss, key) = (binding.recipe.of_stage(number).model.loss, binding.recipe.loss_key(number));
            let mut bound = Vec::new();
            for term in loss.terms().iter().filter(|_| is_here(&loss, binding.field.is_some())) {
                bound.extend(match term.program() {
                    Some(_) => {
                        let bind = |own| OwnLoss::bind(own, &binding.ports, binding.sets);
                        own.take(number).map(bind).transpose()?.map(|own| Bound::Own(Box::new(own)))
                    }
                    None => Some(Bound::Known(Box::new(binding.bind(term, &key)?))),
                });
            }
            stages.push(is_here(&loss, binding.field.is_some()).then_some(bound));
        }
        Ok(Self {
            stages,
            current: 0,
            size: binding.size,
            has_others: false,
            field: binding.field.map(str::to_owned),
            main: [Mode::Train, Mode::Evaluate].map(|mode| binding.ports.main_at(mode)),
        })
    }

    /// Returns the names of the outputs that losses take by name.
    pub(super) fn outputs(&self) -> Vec<&str> {
        self.stages.iter().flatten().flatten().flat_map(Bound::outputs).collect()
    }

    /// Returns whether a stage has a loss of the user.
    pub(super) fn has_own(&self) -> bool {
        self.stages.iter().flatten().flatten().any(|bound| matches!(bound, Bound::Own(_)))
    }

    /// Adds what a run compares with its checkpoint of the user's own losses.
    pub(super) fn add_to(&self, facts: &mut Facts) {
        for bound in self.stages.iter().flatten().flatten() {
            if let Bound::Own(own) = bound {
                own.add_to(facts);
            }
        }
    }

    /// Begins a stage.
    pub(super) fn begin(&mut self, stage: usize) {
        self.current = stage.min(self.stages.len() - 1);
    }

    /// Returns whether some stage has such losses.
    pub(super) fn has_some(&self) -> bool {
        self.stages.iter().any(Option::is_some)
    }

    /// Returns an error for a program that returns no loss: a stage has no loss, or only losses of outputs that evaluations lack.
    pub(super) fn check_alone(&self) -> Result<(), Unfit> {
        if self.stages.iter().any(Option::is_none) {
            return Err(Unfit::NoLoss);
        }
        let untested = |bound: &'_ Bound| match bound {
            Bound::Known(known) => {
                known.output.as_ref().filter(|at| at.evaluate.is_none()).map(|at| at.name.clone())
            }
            Bound::Own(_) => None,
        };
        let mut stages = self.stages.iter().flatten();
        let found = stages.find_map(|all| all.iter().map(untested).collect::<Option<Vec<_>>>()?.pop());
        found.map_or(Ok(()), |name| Err(Unfit::Untested(name)))
    }

    /// Computes the loss of a batch; None if the task computes its own in this stage. `output` gives an output by number, `main` the
    /// main one with the auxiliary ones, in `units`. A loss of an output that evaluations lack counts in training alone.
    pub(super) fn loss(
        &self,
        output: OutputAt<'_>,
        (main, units): (Option<&Outputs>, &Units),
        batch: &Batch,
        mode: Mode,
    ) -> Result<Option<Loss>, TaskError> {
        let Some(stage) = &self.stages[self.current] else { return Ok(None) };
        let mut total = batch.weights.f_zeros_like()?;
        let mut divisor = None;
        for bound in stage {
            let known = match bound {
                Bound::Known(known) => known,
                Bound::Own(own) => {
                    let at = if mode == Mode::Train { self.main[0] } else { self.main[1] };
                    let goal = self.field.as_deref().map(|field| (field, units));
                    let is_alone = stage.len() == 1 && !self.has_others;
                    let of = OfBatch { output, at, main, goal, batch, mode };
                    let (losses, weights) = own.losses(&of, is_alone)?;
                    total = total.f_add(&losses)?;
                    divisor = weights;
                    continue;
                }
            };
            let own = match (&known.output, mode) {
                (Some(at), Mode::Train) => Some(Outputs::only(output(at.train)?)),
                (Some(At { evaluate: Some(at), .. }), Mode::Evaluate) => Some(Outputs::only(output(*at)?)),
                (Some(_), Mode::Evaluate) => continue,
                (None, _) => None,
            };
            let Some(outputs) = own.as_ref().or(main) else { continue };
            let (target, units) = (batch.field(&known.field)?, known.units.as_ref().unwrap_or(units));
            total = total.f_add(&losses(&known.term, outputs, target, &batch.weights, known.goal, units)?)?;
        }
        let loss = Loss::of_samples(&total, &batch.weights, Loss::no_sums(batch.weights.device())?)?;
        if let Some(weights) = divisor {
            // The loss weighs as many as its own weights, such as pixels.
            let weight = weights.f_mul(&batch.weights)?.f_sum(Kind::Double)?;
            return Ok(Some(Loss { weight, ..loss }));
        }
        let scaled = |value: &Tensor| -> Result<Tensor, TchError> { value.f_mul_scalar(self.size) };
        Ok(Some(Loss { sum: scaled(&loss.sum)?, weight: scaled(&loss.weight)?, sums: loss.sums }))
    }
}

impl Binding<'_> {
    /// `of_losses`: the key of the losses.
    fn bind(&self, stated: &LossTerm, of_losses: &str) -> Result<Known, TaskError> {
        let key = format!("{of_losses} ({})", stated.name());
        let unfit = |unfit| self.ports.unfit(unfit);
        let main = self.field.unwrap_or_default();
        let name = stated.target.as_deref().unwrap_or(main);
        let (field, target) = self.field(name, &key).map_err(unfit)?;
        let classes = self.classes(name);
        let takes = target.losses();
        if !takes.contains(&stated.name()) {
            let takes = takes.into_iter().map(str::to_owned).collect();
            let loss = stated.name().to_owned();
            return Err(unfit(Unfit::LossOfField { key, loss, field: name.to_owned(), takes }));
        }
        let goal = match target {
            Target::Class => Goal::Class(classes),
            Target::Mask => {
                let known = if classes == 0 { self.recipe.data.classes } else { classes };
                Goal::Pixels { classes: known, ignore: mask_rule(self.recipe).ignore }
            }
            Target::Map => Goal::Map,
            Target::Vector | Target::Classes | Target::Tokens => Goal::Numbers,
        };
        let output =
            stated.output.as_deref().map(|output| self.output(output, &key)).transpose().map_err(unfit)?;
        // The task checks its main output for its own field.
        let of_main = |mode| (output.is_none() && name != main).then(|| (mode, self.ports.main_at(mode)));
        let train = output.as_ref().map(|at| (Mode::Train, at.train)).or_else(|| of_main(Mode::Train));
        let evaluate = output.as_ref().and_then(|at| at.evaluate.map(|at| (Mode::Evaluate, at)));
        let evaluate = evaluate.or_else(|| of_main(Mode::Evaluate));
        for (mode, at) in train.into_iter().chain(evaluate) {
            fits(&self.ports.all(mode)[at], &stated.settings, goal, field).map_err(unfit)?;
        }
        let count = field.shape.first().copied().unwrap_or(1);
        Ok(Known {
            term: term(&stated.settings, (classes, self.names(name)), of_losses, self.ports.device)?,
            output,
            field: name.to_owned(),
            goal,
            units: (name != main).then(|| Units::of_targets(count)),
        })
    }

    fn output(&self, name: &str, key: &str) -> Result<At, Unfit> {
        let train = named_output(self.ports.all(Mode::Train), name, key)?;
        let evaluate = self.ports.all(Mode::Evaluate).iter().position(|port| port.name == name);
        Ok(At { name: name.to_owned(), train, evaluate })
    }

    /// Returns a field with a target, and what it holds.
    fn field(&self, name: &str, key: &str) -> Result<(&Field, Target), Unfit> {
        let sets = self.sets;
        let of_field = |field: &Field| {
            let is_whole = field.kind == FieldKind::I64;
            Some(match (is_whole, &field.shape[..]) {
                (true, []) if self.classes(&field.name) > 0 => Target::Class,
                (true, [_, _]) => Target::Mask,
                (false, [_]) if self.classes(&field.name) > 0 => Target::Classes,
                (false, [_]) => Target::Vector,
                (false, [_, _]) => Target::Map,
                _ => return None,
            })
        };
        let fields = sets.train.fields();
        let found = fields.iter().find(|field| field.name == name && name != Numbered::FIELD);
        match found.and_then(|field| Some((field, of_field(field)?))) {
            Some(found) => Ok(found),
            None => {
                let known = |field: &&Field| of_field(field).is_some() && field.name != Numbered::FIELD;
                let fields = fields.iter().filter(known);
                let fields = fields.map(|field| field.name.to_string()).collect();
                Err(Unfit::NoLossTarget { key: key.to_owned(), name: name.to_owned(), fields })
            }
        }
    }

    /// Returns the names of its classes, if they have some.
    fn names(&self, field: &str) -> &[String] {
        let (sets, field) = (self.sets, of_sample(field));
        let other = sets.other_classes.get(field).or_else(|| sets.mask_classes.get(field));
        other.map_or(&sets.class_names, |names| names)
    }

    /// Returns the number of classes in a field of classes or a mask; 0 if it is another one.
    fn classes(&self, field: &str) -> usize {
        let own = match self.recipe.target() {
            Some(Target::Class | Target::Classes) => Some("label"),
            Some(Target::Mask) => Some("mask"),
            _ => None,
        };
        let field = of_sample(field);
        let of_target = if own == Some(field) { self.sets.classes } else { 0 };
        let other = self.sets.other_classes.get(field).or_else(|| self.sets.mask_classes.get(field));
        other.map_or(of_target, Vec::len)
    }
}

/// Returns the sample's field of a partner's, which has the same classes.
fn of_sample(field: &str) -> &str {
    field.strip_prefix("pair_").unwrap_or(field)
}

/// Checks that an output has the shape that a loss takes.
fn fits(port: &Port, loss: &SampleLoss, goal: Goal, field: &Field) -> Result<(), Unfit> {
    let (loss, name) = (loss.name(), &field.name);
    let says = |expected: String| {
        format!(
            "the loss {loss:?} of the field `{name}` takes {expected}; name another output, or import the model again"
        )
    };
    match (goal, &field.shape[..]) {
        (Goal::Class(classes), _) if loss == "ordinal" => {
            let least = classes as i64 - 1;
            let expected = says(format!("N x {least}, one less than its {classes} classes"));
            check_output(port, &expected, &|shape| matches!(shape, [None, Some(k)] if *k == least))
        }
        (Goal::Class(classes), _) => {
            let expected = says(format!("logits, N x K with K at least its {classes} classes"));
            check_output(port, &expected, &|shape| matches!(shape, [None, Some(k)] if *k >= classes as i64))
        }
        (Goal::Pixels { classes, .. }, &[height, width]) => {
            let expected = says(format!(
                "logits, N x K x height x width with K at least its {classes} classes, of {height} x {width} or less"
            ));
            check_output(port, &expected, &|shape| match *shape {
                [None, Some(k), h, w] => k >= classes as i64 && enlarges(h, height) && enlarges(w, width),
                _ => false,
            })
        }
        (Goal::Map, &[height, width]) => {
            let expected =
                says(format!("N x height x width or N x 1 x height x width, of {height} x {width} or less"));
            check_output(port, &expected, &|shape| match *shape {
                [None, h, w] | [None, Some(1), h, w] => enlarges(h, height) && enlarges(w, width),
                _ => false,
            })
        }
        (_, shape) => {
            let numbers = shape.first().copied().unwrap_or(1) as i64;
            let expected = says(format!("N x {numbers}"));
            check_output(port, &expected, &|shape| match *shape {
                [None] => numbers == 1,
                [None, k] => k == Some(numbers),
                _ => false,
            })
        }
    }
}
