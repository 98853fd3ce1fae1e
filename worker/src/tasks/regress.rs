//! Regression by an exported program: numbers for each image, one for each of its classes, or one for each pixel.

use dtrain_parts::figures::errors::{map_metrics, vector_metrics};
use dtrain_parts::losses::regression::{Units, map_loss, map_of, vector_loss};
use dtrain_recipe::{self as recipe, Recipe, Target};
use tch::{Kind, Tensor};

use super::figures::{Figures, Given, Of};
use super::forward::Forward;
use super::mixed;
use super::network::{MAIN_OUTPUTS, Network, Ports, Program, enlarges};
use super::output_losses::{Binding, OutputLosses};
use super::own::{OwnChange, with_change};
use super::predict::Form;
use super::samples::{self, Sets, Survey, mask_rule};
use super::{
    Batch, BuildContext, BuildTask, ByRows, BySums, Facts, Loss, Mode, Passed, Predict, RowFigures,
    StageView, SurveyContext, Task, TaskError, Totals, Unlabelled,
};

/// The task `regress`. The loss of a vector is the mean over its numbers; that of maps is a sum over pixels.
pub struct Regress {
    network: Network,
    figures: Figures,
    facts: Facts,
    units: Units,
    /// Of vectors: about the mean of each target, so that sums of squares are exact.
    center: Tensor,
    loss: recipe::Loss,
    /// The user's own change of images.
    change: Option<OwnChange>,
    outputs: OutputLosses,
    /// Whether the last sum is the number of samples, or of a map's pixels. Otherwise the weight is it.
    counts_targets: bool,
    /// The names of the numbers; empty if the target is a map.
    numbers: Vec<String>,
    /// Height and width of the images.
    size: (i64, i64),
    /// The number of a black pixel in a map.
    black: f32,
    /// How much more a white pixel is.
    white: f32,
    /// The field of the target: a map, a vector of numbers, or one of classes, each 1 or 0.
    field: &'static str,
}

impl BuildTask for Regress {
    type Survey = Survey;

    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
        samples::survey(recipe, 1, context)
    }

    fn inputs(inputs: Unlabelled) -> Result<Survey, TaskError> {
        Ok(Survey::Unlabelled(Box::new(inputs)))
    }

    fn build(recipe: &Recipe, survey: Survey, context: BuildContext<'_>) -> Result<Self, TaskError> {
        let device = context.registry.device();
        let program = Program::load(recipe, context.registry)?;
        let mut sets = samples::sets(recipe, survey, context.cache.clone(), || program.context(recipe))?;
        let change = OwnChange::of(recipe, &mut sets, device)?;
        let has_classes = recipe.target() == Some(Target::Classes);
        if has_classes {
            sets.numbers.clone_from(&sets.class_names);
        }
        let network = program.bind(recipe, sets.train.fields(), &MAIN_OUTPUTS)?;
        mixed::check(recipe, &network, sets.train.fields(), false)?;
        check_outputs(&network, &sets)?;
        let field = match (has_classes, sets.numbers.is_empty()) {
            (true, _) => "label",
            (false, true) => "map",
            (false, false) => "targets",
        };
        let ports = Ports::of(&network);
        let given = Given { own: Some(field), ..Given::of(ports, &sets, mask_rule(recipe).ignore) };
        let figures = Figures::bind(&recipe.model.figures, &given)?;
        let numbers = sets.numbers.len().max(1);
        let mut center: Vec<f64> = sets.moments.iter().map(|moments| moments.mean).collect();
        center.resize(numbers, 0.0);
        let units = match recipe.data.normalize_targets {
            true => {
                let moments = sets.moments.iter().map(|moments| (moments.mean, moments.deviation()));
                let (mean, deviation) = moments.unzip();
                Units::normalised(mean, deviation, device)?
            }
            false => Units::of_targets(numbers),
        };
        let mut facts = facts(&sets, &units);
        let outputs = OutputLosses::bind(&Binding {
            recipe,
            ports,
            sets: &sets,
            field: Some(field),
            size: facts.weight_per_sample,
        })?;
        let counts_targets = outputs.has_some();
        facts.sums += usize::from(counts_targets);
        let mut facts = facts.with_program(&network, &[figures.outputs(), outputs.outputs()].concat());
        outputs.add_to(&mut facts);
        change.iter().for_each(|change| change.add_to(&mut facts));
        Ok(Self {
            facts,
            figures,
            change,
            outputs,
            counts_targets,
            network,
            units,
            center: Tensor::f_from_slice(&center)?.f_to_device(device)?,
            // For later stages see `begin_stage`.
            loss: recipe.of_stage(0).model.loss,
            size: (sets.size.1 as i64, sets.size.0 as i64),
            white: recipe.data.target_scale as f32,
            black: recipe.data.target_offset as f32,
            field,
            numbers: sets.numbers,
        })
    }
}

fn facts(sets: &Sets, Units { mean, deviation, .. }: &Units) -> Facts {
    let Sets { numbers: names, size: (width, height), .. } = sets;
    let (sums, weight_per_sample) = match names.len() {
        0 => (2, (width * height) as f64),
        count => (4 * count, 1.0),
    };
    let extra = sets.extra(serde_json::json!({
        "targets": { "names": names, "mean": mean, "deviation": deviation }
    }));
    Facts { sums, weight_per_sample, extra, ..sets.facts() }
}

fn check_outputs(network: &Network, sets: &Sets) -> Result<(), TaskError> {
    let (width, height) = sets.size;
    let numbers = sets.numbers.len() as i64;
    let remedy = "set model.output to another output, or change the model and import it again";
    if sets.numbers.is_empty() {
        let expected = format!(
            "maps need N x height x width or N x 1 x height x width, for images of {height} x {width} or less; {remedy}"
        );
        return network.check_outputs(&expected, &|shape| match *shape {
            [None, h, w] | [None, Some(1), h, w] => enlarges(h, height) && enlarges(w, width),
            _ => false,
        });
    }
    let names = sets.numbers.join(", ");
    let expected = format!("the {numbers} targets ({names}) need N x {numbers}; {remedy}");
    network.check_outputs(&expected, &|shape| match *shape {
        [None] => numbers == 1,
        [None, k] => k.is_none_or(|k| k == numbers),
        _ => false,
    })
}

impl Regress {
    /// Returns an output in the unit of the targets: maps, or N x K.
    fn in_unit(&self, output: &Tensor) -> Result<Tensor, TaskError> {
        let output = match self.numbers.is_empty() {
            true => map_of(output, self.size)?,
            false => output.f_reshape([-1, self.numbers.len() as i64])?,
        };
        Ok(self.units.of_output(&output)?)
    }

    fn of_outputs(&self, all: &[Tensor], batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let outputs = self.network.chosen_of(all, mode);
        let main = (Some(&outputs), &self.units);
        let own = self.outputs.loss(&|at| Ok(all[at].shallow_clone()), main, batch, mode)?;
        let own = match (mode, own) {
            (Mode::Train, Some(own)) => return Ok(own),
            (_, own) => own,
        };
        let mut loss = mixed::loss(batch, mode, self.field, |targets, weights| {
            Ok(match self.field {
                "map" => map_loss(&outputs, targets, weights, &self.units, &self.loss)?,
                _ => vector_loss(&outputs, targets, weights, &self.units, &self.center, &self.loss)?,
            })
        })?;
        if self.counts_targets {
            loss.sums = Tensor::f_cat(&[&loss.sums, &loss.weight.f_reshape([1])?], 0)?;
        }
        Ok(match own {
            // Of the plain loss, only the sums count.
            Some(own) => Loss { sums: loss.sums, ..own },
            None => loss,
        })
    }
}

impl RowFigures for Regress {
    fn figures(&self) -> Vec<(&str, &dyn ByRows)> {
        self.figures.by_rows()
    }

    fn forward(&self, batch: &Batch) -> Result<Passed, TaskError> {
        let outputs = self.network.run_batch(batch, Mode::Evaluate)?;
        let mut loss = self.of_outputs(&outputs, batch, Mode::Evaluate)?;
        let of = Of {
            output: &|at| Ok(outputs[at].shallow_clone()),
            in_unit: Some(&|values| Ok(self.units.of_output(values)?)),
            nats: None,
            batch,
        };
        loss.sums = Tensor::f_cat(&[&loss.sums, &self.figures.add(&of)?], 0)?;
        Ok(Passed { loss, values: Vec::new(), rows: self.figures.rows(&of)? })
    }

    fn by_sums(&self) -> Option<BySums<'_>> {
        Some(BySums(&self.figures))
    }
}

impl Predict for Regress {
    fn form(&self) -> Form {
        match self.numbers.is_empty() {
            true => Form::Maps { black: self.black, white: self.white },
            false => Form::Numbers(self.numbers.clone()),
        }
    }

    fn network(&self) -> &dyn Forward {
        &self.network
    }

    fn output(&self) -> usize {
        self.network.main_at(Mode::Evaluate)
    }

    fn values(&self, outputs: &[Tensor]) -> Result<Tensor, TaskError> {
        Ok(self.in_unit(&outputs[self.output()])?.f_to_kind(Kind::Float)?)
    }
}

impl Task for Regress {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let batch = &with_change(self.change.as_ref(), batch, mode)?;
        self.of_outputs(&self.network.run_batch(batch, mode)?, batch, mode)
    }

    fn row_figures(&self) -> Option<&dyn RowFigures> {
        (!self.figures.is_empty()).then_some(self)
    }

    fn predict(&self) -> Option<&dyn Predict> {
        Some(self)
    }

    fn begin_stage(&mut self, stage: &StageView<'_>) -> Result<(), TaskError> {
        self.loss.clone_from(&stage.recipe.model.loss);
        self.outputs.begin(stage.number);
        Ok(())
    }

    /// Returns the mean absolute and the root mean squared error in the unit of the targets, and for vectors
    /// the coefficient of determination.
    fn figures(&self, totals: &Totals) -> Vec<(&str, f64)> {
        let (sums, count) = match &totals.sums[..] {
            [sums @ .., count] if self.counts_targets => (sums, *count),
            sums => (sums, totals.weight),
        };
        match *sums {
            [absolute, squared] if self.numbers.is_empty() => map_metrics([absolute, squared], count).into(),
            _ => vector_metrics(sums, count).into(),
        }
    }
}

#[cfg(test)]
mod tests;
