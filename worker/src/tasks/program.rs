//! Programs that return their loss: any data, any model.

use dtrain_parts::losses::regression::Units;
use dtrain_recipe::{Join, Recipe};
use tch::{Device, Kind, TchError, Tensor};

use super::figures::{Figures, Given, Of};
use super::mixed;
use super::network::{Network, Ports, Program as Exported, unfit_output};
use super::output_losses::{self, Binding, OutputLosses};
use super::own::{OwnChange, OwnLosses, with_change};
use super::program_classes;
use super::program_counted::Counted;
use super::program_error::Unfit;
use super::program_losses::{self, Losses};
use super::program_predicted::Predicted;
use super::samples::{self, Survey, mask_rule};
use super::{
    Batch, BuildContext, BuildTask, ByRows, BySums, Facts, Loss, Mode, Passed, Predict, RowFigures,
    StageView, StepLoss, StepValue, SurveyContext, Task, TaskError, Totals, Unlabelled,
};
use crate::models::Port;
use crate::tensors::is_floating;

/// The usual name of the loss.
const LOSS: &str = "loss";

/// The task `program`. The loss is a scalar, the mean of a micro-batch, or one number for each sample; those of `model.loss`, which
/// take outputs and fields by name; and those of `model.losses`, which take outputs of all samples of a step.
pub struct Program {
    pub(super) network: Network,
    /// Whether the main output is the program's own loss.
    has_own: bool,
    /// The user's own change of images.
    change: Option<OwnChange>,
    losses: Option<Losses>,
    /// Those of outputs and fields by name.
    outputs: OutputLosses,
    /// Whether a queue gets a row for each sample, also for an unreadable one.
    keeps_rows: bool,
    /// The outputs that are figures.
    figures: Vec<Figure>,
    /// Those of `model.figures`.
    listed: Figures,
    facts: Facts,
    pub(super) predicted: Option<Predicted>,
}

/// An output whose mean is a figure of evaluations.
struct Figure {
    name: String,
    /// Its number among the outputs for evaluation.
    at: usize,
}

fn is_scalar(shape: &[Option<i64>]) -> bool {
    matches!(shape, [] | [Some(1)])
}

/// Returns whether an output may be a loss: a scalar, or one number for each sample.
fn is_loss(shape: &[Option<i64>]) -> bool {
    is_scalar(shape) || matches!(shape, [None])
}

/// Returns the outputs of an evaluation that are a scalar or N numbers, besides the main one.
fn figures(evaluate: &[Port], main: &str) -> Vec<Figure> {
    let is_figure = |port: &Port| {
        is_loss(&port.shape) && is_floating(port.kind) && ![main, LOSS].contains(&port.name.as_str())
    };
    let ports = evaluate.iter().enumerate().filter(|(_, port)| is_figure(port));
    ports.map(|(at, port)| Figure { name: port.name.clone(), at }).collect()
}

impl BuildTask for Program {
    type Survey = Survey;

    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
        samples::survey(recipe, 1, context)
    }

    fn inputs(inputs: Unlabelled) -> Result<Survey, TaskError> {
        Ok(Survey::Unlabelled(Box::new(inputs)))
    }

    fn build(recipe: &Recipe, survey: Survey, context: BuildContext<'_>) -> Result<Self, TaskError> {
        let exported = Exported::load(recipe, context.registry)?;
        let device = context.registry.device();
        let mut sets = samples::sets(recipe, survey, context.cache.clone(), || exported.context(recipe))?;
        let change = OwnChange::of(recipe, &mut sets, device)?;
        let (stated, fields) = (&recipe.model, sets.train.fields());
        let taken = program_losses::outputs(&stated.losses, exported.exported().outputs());
        let taken = taken.map_err(|unfit| exported.unfit(unfit))?;
        let own = OwnLosses::load(recipe, &sets, device)?;
        let ports = exported.exported().outputs();
        let named = output_losses::known_outputs(recipe, ports).map_err(|unfit| exported.unfit(unfit))?;
        // A prediction has no loss, and any output may be the main one.
        let any = exported.exported().evaluation_outputs().iter();
        let any = any.filter(|_| sets.predicts && recipe.has_own_loss());
        let of_own = own.takes(ports).into_iter().chain(any.map(|port| port.name.clone()));
        let of_own: Vec<_> = of_own.collect();
        let usual = [LOSS].into_iter().chain(taken.iter().copied());
        let usual: Vec<_> = usual.chain(named.iter().chain(&of_own).map(String::as_str)).collect();
        let network = exported.bind(recipe, fields, &usual)?;
        mixed::check(recipe, &network, fields, true)?;
        let losses = Losses::bind(&stated.losses, &network, fields).map_err(|unfit| network.unfit(unfit))?;
        let main = &network.main(Mode::Train).name;
        let has_others = losses.is_some() || output_losses::has_some(recipe);
        // A stated output may be what a user's own loss takes.
        let states_loss =
            stated.output.is_some() && (!recipe.has_own_loss() || is_loss(&network.main(Mode::Train).shape));
        let has_own = !has_others || states_loss || main == LOSS;
        let ports = Ports { takes_main: false, ..Ports::of(&network) };
        // A user's own loss takes the main output, unless that is a loss.
        let taken_by_own = Ports { takes_main: !has_own, ..ports };
        let binding = Binding { recipe, ports: taken_by_own, sets: &sets, field: None, size: 1.0 };
        let mut outputs = OutputLosses::bind_loaded(&binding, own)?;
        outputs.has_others = has_own || losses.is_some();
        if !has_own && losses.is_none() {
            outputs.check_alone().map_err(|unfit| network.unfit(unfit))?;
        }
        let expected = "task = \"program\" needs the loss, a scalar or one number for each sample; set model.output to another \
                        output, or the task to the one that computes this model's loss";
        let keeps_rows = stated.state.values().any(|join| *join == Join::Append);
        if has_own {
            network.check_outputs(expected, &is_loss)?;
            let own = network.main(Mode::Train);
            if keeps_rows && is_scalar(&own.shape) {
                let each = "model.state appends a row for each sample, also for an unreadable one, which no mean can leave out; \
                            return one number for each sample";
                return Err(network.unfit(unfit_output(own, each)));
            }
        }
        let evaluate = network.ports(Mode::Evaluate);
        program_classes::check(&network, &sets, recipe.data.episodes.is_some())?;
        let own = if has_own { network.main(Mode::Evaluate).name.as_str() } else { LOSS };
        let mut figures = figures(evaluate, own);
        let taken_by_losses = outputs.outputs();
        figures.retain(|figure| !taken_by_losses.contains(&&*figure.name));
        let given = Given::of(ports, &sets, mask_rule(recipe).ignore);
        let listed = Figures::bind(&stated.figures, &given)?;
        if let Some(label) = listed.names().find(|label| figures.iter().any(|figure| figure.name == **label))
        {
            return Err(network.unfit(Unfit::TwoFigures(label.to_owned())));
        }
        let used = figures.iter().map(|figure| figure.name.as_str()).chain(taken).chain(listed.outputs());
        let used: Vec<_> = used.chain(taken_by_losses).collect();
        let sums = figures.len() + usize::from(outputs.has_own());
        let mut facts = Facts { sums, ..sets.facts() }.with_program(&network, &used);
        outputs.add_to(&mut facts);
        change.iter().for_each(|change| change.add_to(&mut facts));
        let predicted = Predicted::of(recipe, evaluate, &sets);
        let mut program =
            Self { network, has_own, change, losses, outputs, keeps_rows, figures, listed, facts, predicted };
        program.facts.is_capturable &= !program.computes_means(Mode::Train);
        if has_own && is_scalar(&program.network.main(Mode::Train).shape) {
            let mean = "the program returns the mean loss of a micro-batch, which is exact only if all samples have equal \
                        weight in it";
            let other = program.facts.micro_batch_warning.take();
            let warnings: Vec<_> = [mean.to_owned()].into_iter().chain(other).collect();
            program.facts.micro_batch_warning = Some(warnings.join("; "));
        }
        Ok(program)
    }
}

/// Returns the sum over the samples of an output: a mean of `count` samples, or a number for each sample with
/// its weight in `weights`.
fn sum_of(output: &Tensor, shape: &[Option<i64>], weights: &Tensor, count: f64) -> Result<Tensor, TchError> {
    match is_scalar(shape) {
        // The mean of no samples may be NaN.
        true if count == 0.0 => {
            output.f_nan_to_num(0.0, 0.0, 0.0)?.f_mul_scalar(0.0)?.f_reshape([] as [i64; 0])
        }
        true => output.f_mul_scalar(count)?.f_reshape([] as [i64; 0]),
        false => output.f_masked_fill(&weights.f_eq(0.0)?, 0.0)?.f_mul(weights)?.f_sum(output.kind()),
    }
}

impl Program {
    /// Returns whether the sums have the number of samples, because the weight may be that of a user's own loss.
    fn counts_samples(&self) -> bool {
        self.outputs.has_own()
    }

    /// Returns whether the program computes means of a batch. Unreadable samples would change them, and are removed.
    fn computes_means(&self, mode: Mode) -> bool {
        let ports = self.network.ports(mode);
        // A number that a loss takes, such as a temperature, is no mean.
        let numbers = |port: &&Port| !self.losses.as_ref().is_some_and(|losses| losses.takes(&port.name));
        // A training step needs no figures.
        let figures = self.figures.iter().filter(|_| mode == Mode::Evaluate).map(|figure| &ports[figure.at]);
        let figures = figures.filter(numbers);
        let own = self.has_own.then(|| self.network.main(mode));
        figures.chain(own).any(|port| is_scalar(&port.shape))
    }

    /// Returns the inputs of the samples that count: of all, or without unreadable ones, if means of a batch are computed.
    /// A figure that is a mean counts an unreadable sample, if a queue needs its row.
    fn inputs(&self, batch: &Batch, mode: Mode) -> Result<Counted, TaskError> {
        let fields = self.network.fields().iter().map(|name| batch.field(name));
        let all = batch.weight == batch.samples() as f64 || batch.weight == 0.0;
        if all || (self.keeps_rows && mode == Mode::Train) || !self.computes_means(mode) {
            let inputs = fields.map(|field| Ok(field?.shallow_clone())).collect::<Result<_, TaskError>>()?;
            return Ok(Counted { inputs, weights: batch.weights.shallow_clone(), rows: None });
        }
        let rows = batch.weights.f_nonzero()?.f_view([-1])?;
        let select = |values: &Tensor| values.f_index_select(0, &rows);
        let inputs = fields.map(|field| Ok(select(field?)?)).collect::<Result<_, TaskError>>()?;
        Ok(Counted { inputs, weights: select(&batch.weights)?, rows: Some(rows) })
    }

    /// Computes the loss of the samples alone, and the outputs.
    fn run(&self, counted: &Counted, batch: &Batch, mode: Mode) -> Result<(Loss, Vec<Tensor>), TaskError> {
        let _draws = counted.draws()?;
        let outputs = self.network.run(&counted.inputs.iter().collect::<Vec<_>>(), mode)?;
        // Those of a batch without its unreadable samples have other places.
        if counted.rows.is_none() {
            batch.offer_outputs(&outputs);
        }
        let ports = self.network.ports(mode);
        let sum_at = |at: usize, kind| {
            let output: &Tensor = &outputs[at];
            sum_of(&output.f_to_kind(kind)?, &ports[at].shape, &counted.weights, batch.weight)
        };
        let device = batch.weights.device();
        let own = match self.has_own {
            true => sum_at(self.network.main_at(mode), Kind::Float)?,
            false => Tensor::f_zeros([] as [i64; 0], (Kind::Float, device))?,
        };
        let output = |at| self.whole(counted, &outputs, at, batch, mode);
        let main = (None, &Units::of_targets(1));
        let (sum, weight) = match self.outputs.loss(&output, main, batch, mode)? {
            Some(of_outputs) => (own.f_add(&of_outputs.sum)?, of_outputs.weight),
            None => (own, batch.weights.f_sum(Kind::Double)?),
        };
        let figures = self.figures.iter().map(|figure| sum_at(figure.at, Kind::Double));
        let count = self.counts_samples().then(|| batch.weights.f_sum(Kind::Double));
        let sums = match mode {
            Mode::Train => Loss::no_sums(device)?,
            Mode::Evaluate => stacked(figures.chain(count), device)?,
        };
        Ok((Loss { sum, weight, sums }, outputs))
    }
}

impl Program {
    /// Returns an output of all samples of a batch.
    fn whole(
        &self,
        counted: &Counted,
        outputs: &[Tensor],
        at: usize,
        batch: &Batch,
        mode: Mode,
    ) -> Result<Tensor, TaskError> {
        let port = &self.network.ports(mode)[at];
        let output = counted.spread(&outputs[at], port, batch.samples())?;
        match port.shape.first() {
            Some(None) if output.size()[0] != batch.samples() as i64 => {
                let each =
                    "a loss or figure takes a value for each of the N samples, and this is of another number";
                Err(self.network.unfit(unfit_output(port, each)))
            }
            _ => Ok(output),
        }
    }

    fn step_values(
        &self,
        output: &dyn Fn(usize) -> Result<Tensor, TaskError>,
        batch: &Batch,
        mode: Mode,
    ) -> Result<Vec<Tensor>, TaskError> {
        self.losses.as_ref().map_or(Ok(Vec::new()), |losses| losses.of_batch(output, batch, mode))
    }
}

impl StepLoss for Program {
    fn values(&self) -> &[StepValue] {
        self.losses.as_ref().map_or(&[], Losses::values)
    }

    fn forward(&self, batch: &Batch, mode: Mode) -> Result<(Loss, Vec<Tensor>), TaskError> {
        let batch = &with_change(self.change.as_ref(), batch, mode)?;
        let counted = self.inputs(batch, mode)?;
        let (loss, outputs) = self.run(&counted, batch, mode)?;
        let values = self.step_values(&|at| self.whole(&counted, &outputs, at, batch, mode), batch, mode)?;
        Ok((loss, values))
    }

    fn mean(&self, values: &[Tensor], weights: &Tensor) -> Result<Tensor, TaskError> {
        match &self.losses {
            Some(losses) => losses.mean(values, weights),
            None => Ok(Tensor::f_zeros([] as [i64; 0], (Kind::Float, weights.device()))?),
        }
    }
}

impl RowFigures for Program {
    fn figures(&self) -> Vec<(&str, &dyn ByRows)> {
        self.listed.by_rows()
    }

    fn forward(&self, batch: &Batch) -> Result<Passed, TaskError> {
        let counted = self.inputs(batch, Mode::Evaluate)?;
        let (mut loss, outputs) = self.run(&counted, batch, Mode::Evaluate)?;
        let output = |at| self.whole(&counted, &outputs, at, batch, Mode::Evaluate);
        let of = Of { output: &output, in_unit: None, nats: None, batch };
        loss.sums = Tensor::f_cat(&[&loss.sums, &self.listed.add(&of)?], 0)?;
        let values = self.step_values(&output, batch, Mode::Evaluate)?;
        Ok(Passed { loss, values, rows: self.listed.rows(&of)? })
    }

    fn by_sums(&self) -> Option<BySums<'_>> {
        Some(BySums(&self.listed))
    }
}

impl Task for Program {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let batch = &with_change(self.change.as_ref(), batch, mode)?;
        Ok(self.run(&self.inputs(batch, mode)?, batch, mode)?.0)
    }

    fn predict(&self) -> Option<&dyn Predict> {
        Some(self)
    }

    fn begin_stage(&mut self, stage: &StageView<'_>) -> Result<(), TaskError> {
        self.outputs.begin(stage.number);
        Ok(())
    }

    fn step_loss(&self) -> Option<&dyn StepLoss> {
        self.losses.is_some().then_some(self)
    }

    fn row_figures(&self) -> Option<&dyn RowFigures> {
        (!self.listed.is_empty()).then_some(self)
    }

    fn figures(&self, totals: &Totals) -> Vec<(&str, f64)> {
        let own = self.figures.iter().zip(&totals.sums);
        // The weight of a user's own loss is another one.
        let count = totals.sums.get(self.figures.len()).copied().unwrap_or(totals.weight);
        own.map(|(figure, sum)| (figure.name.as_str(), sum / count)).collect()
    }
}

/// Returns scalars as one float64 tensor, which may be empty.
fn stacked(
    scalars: impl Iterator<Item = Result<Tensor, TchError>>,
    device: Device,
) -> Result<Tensor, TchError> {
    let scalars: Vec<_> = scalars.collect::<Result<_, _>>()?;
    match scalars.is_empty() {
        true => Tensor::f_zeros([0], (Kind::Double, device)),
        false => Tensor::f_stack(&scalars, 0),
    }
}

#[cfg(test)]
mod tests;
