//! Semantic segmentation: `model.loss` of the logits, by default the cross-entropy of every pixel, and mean IoU.

use dtrain_parts::enlarged;
use dtrain_parts::figures::areas;
use dtrain_parts::losses::pixels::{Masks, is_plain, pixel_loss, pixel_losses, pixel_sums};
use dtrain_parts::losses::regression::Units;
use dtrain_recipe::Recipe;
use tch::Tensor;

use super::figures::{Figures, Given, Of};
use super::forward::Forward;
use super::network::{ImageNetwork, MAIN_OUTPUTS, Network, Program, enlarges, logits};
use super::output_losses::{Binding, OutputLosses};
use super::own::{OwnChange, with_change};
use super::predict::{Form, probabilities};
use super::samples::{self, Survey, mask_rule};
use super::terms::Terms;
use super::{
    Batch, BuildContext, BuildTask, ByRows, BySums, Facts, Loss, Mode, Passed, Predict, RowFigures,
    StageView, SurveyContext, Task, TaskError, Totals, Unlabelled,
};
use crate::data::Dataset;
use crate::models::{self, ModelError, Registry, UnetConfig};

/// The task `segment`. Pixels of `data.ignore` and unreadable samples do not count.
pub struct Segment {
    model: ImageNetwork,
    /// The user's own change of images.
    change: Option<OwnChange>,
    figures: Figures,
    facts: Facts,
    terms: Terms,
    outputs: OutputLosses,
    /// Whether the loss of every stage is the cross-entropy alone.
    is_plain: bool,
    classes: usize,
    /// The value of mask pixels to ignore.
    ignore: i64,
    /// Height and width of the images.
    size: (i64, i64),
}

impl BuildTask for Segment {
    type Survey = Survey;

    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
        samples::survey(recipe, 1, context)
    }

    fn inputs(inputs: Unlabelled) -> Result<Survey, TaskError> {
        Ok(Survey::Unlabelled(Box::new(inputs)))
    }

    fn build(recipe: &Recipe, survey: Survey, context: BuildContext<'_>) -> Result<Self, TaskError> {
        let device = context.registry.device();
        let mut sets = samples::sets(recipe, survey, context.cache.clone(), || Ok(0))?;
        let change = OwnChange::of(recipe, &mut sets, device)?;
        let (size, classes) = (sets.size, sets.classes);
        let terms = Terms::bind(recipe, &sets, device)?;
        let is_plain = terms.all(is_plain);
        let model = match recipe.program() {
            Some(_) => ImageNetwork::Exported(Box::new(exported(
                recipe,
                sets.train.as_ref(),
                classes,
                size,
                context.registry,
            )?)),
            None => ImageNetwork::Built(unet(recipe, classes, size, context.registry)?),
        };
        let ignore = mask_rule(recipe).ignore;
        let (width, height) = size;
        let weight_per_sample = (width * height) as f64;
        let logits = logits(vec![None, Some(classes as i64), Some(height as i64), Some(width as i64)]);
        let ports = model.ports(&logits, device);
        let figures = Figures::bind(&recipe.model.figures, &Given::of(ports, &sets, ignore))?;
        let (field, of_image) = (Some("mask"), weight_per_sample);
        let outputs = OutputLosses::bind(&Binding { recipe, ports, sets: &sets, field, size: of_image })?;
        let facts = Facts { sums: 2 * classes + 1, weight_per_sample, ..sets.facts() };
        let used = [figures.outputs(), outputs.outputs()].concat();
        let mut facts = facts.with_model(&model, &used, |model| model.min_micro_batch(width.min(height)));
        outputs.add_to(&mut facts);
        change.iter().for_each(|change| change.add_to(&mut facts));
        let size = (height as i64, width as i64);
        Ok(Self { model, change, figures, facts, terms, outputs, is_plain, classes, ignore, size })
    }
}

fn unet(
    recipe: &Recipe,
    classes: usize,
    size: (usize, usize),
    registry: &mut Registry,
) -> Result<Box<dyn models::Classifier>, TaskError> {
    let (data, model) = (&recipe.data, &recipe.model);
    // A loaded recipe has all sizes of its network.
    let config = UnetConfig {
        channels: data.channels,
        classes,
        width: model.width.unwrap_or(32),
        depth: model.depth.unwrap_or(4),
    };
    let smallest = config.smallest_image();
    if size.0.min(size.1) < smallest {
        let reason = format!(
            "images of {} x {} pixels are too small for this many halvings; lower model.depth, or enlarge the images to at \
                 least {smallest} pixels with data.resize and data.image_size",
            size.0, size.1
        );
        let (key, value) = ("model.depth", config.depth);
        return Err(ModelError::Setting { key, value, reason }.into());
    }
    Ok(models::build_unet(config, registry)?)
}

fn exported(
    recipe: &Recipe,
    train: &dyn Dataset,
    classes: usize,
    (width, height): (usize, usize),
    registry: &mut Registry,
) -> Result<Network, TaskError> {
    let network = Program::load(recipe, registry)?.bind(recipe, train.fields(), &MAIN_OUTPUTS)?;
    let expected = format!(
        "task = \"segment\" needs logits, N x K x height x width with K at least the {classes} classes of the data, for images of \
         {height} x {width} or less; set model.output to another output, or import the model again with this number of classes"
    );
    let enough = |k: Option<i64>| k.is_none_or(|k| k >= classes as i64);
    network.check_outputs(&expected, &|shape| match *shape {
        [None, k, h, w] => enough(k) && enlarges(h, height) && enlarges(w, width),
        _ => false,
    })?;
    Ok(network)
}

impl RowFigures for Segment {
    fn figures(&self) -> Vec<(&str, &dyn ByRows)> {
        self.figures.by_rows()
    }

    fn forward(&self, batch: &Batch) -> Result<Passed, TaskError> {
        let outputs = self.model.run(batch, Mode::Evaluate)?;
        let mut loss = self.of_outputs(&outputs, batch, Mode::Evaluate)?;
        let of = Of { output: &|at| Ok(outputs[at].shallow_clone()), in_unit: None, nats: None, batch };
        loss.sums = Tensor::f_cat(&[&loss.sums, &self.figures.add(&of)?], 0)?;
        Ok(Passed { loss, values: Vec::new(), rows: self.figures.rows(&of)? })
    }

    fn by_sums(&self) -> Option<BySums<'_>> {
        Some(BySums(&self.figures))
    }
}

impl Segment {
    fn of_outputs(&self, outputs: &[Tensor], batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let logits = self.model.logits(outputs, mode);
        let (mask, weights) = (batch.field("mask")?, &batch.weights);
        let masks = Masks { mask, weights, ignore: self.ignore, classes: self.classes };
        let main = (Some(&logits), &Units::of_targets(1));
        let output = |at: usize| Ok(outputs[at].shallow_clone());
        let loss = match self.outputs.loss(&output, main, batch, mode)? {
            Some(loss) => loss,
            None if self.is_plain => pixel_loss(&logits, &masks)?,
            None => pixel_losses(&self.terms.current().terms, &logits, &masks)?,
        };
        Ok(match mode {
            Mode::Train => loss,
            Mode::Evaluate => Loss { sums: pixel_sums(&logits.main, &masks)?, ..loss },
        })
    }
}

impl Predict for Segment {
    fn form(&self) -> Form {
        Form::Masks { classes: self.model.classes().unwrap_or(self.classes), ignore: self.ignore as u16 }
    }

    fn network(&self) -> &dyn Forward {
        &self.model
    }

    fn output(&self) -> usize {
        self.model.main_at(Mode::Evaluate)
    }

    fn values(&self, outputs: &[Tensor]) -> Result<Tensor, TaskError> {
        let logits = self.model.logits(outputs, Mode::Evaluate).main;
        Ok(probabilities(&enlarged(&logits, self.size)?)?)
    }
}

impl Task for Segment {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let batch = &with_change(self.change.as_ref(), batch, mode)?;
        self.of_outputs(&self.model.run(batch, mode)?, batch, mode)
    }

    fn row_figures(&self) -> Option<&dyn RowFigures> {
        (!self.figures.is_empty()).then_some(self)
    }

    fn predict(&self) -> Option<&dyn Predict> {
        Some(self)
    }

    fn begin_stage(&mut self, stage: &StageView<'_>) -> Result<(), TaskError> {
        self.terms.begin(stage.number);
        self.outputs.begin(stage.number);
        Ok(())
    }

    /// Returns the mean intersection over union of the classes in mask or prediction, and the pixel accuracy.
    fn figures(&self, totals: &Totals) -> Vec<(&'static str, f64)> {
        totals.sums.split_last().map_or(Vec::new(), |(pixels, areas)| areas::metrics(areas, *pixels).into())
    }
}

#[cfg(test)]
mod tests;
