//! Semantic segmentation: cross-entropy on the logits of every pixel, and mean IoU.

use dtrain_recipe::Recipe;
use tch::{Kind, Reduction, TchError, Tensor};

use super::network::{ImageNetwork, MAIN_OUTPUTS, Network, Outputs, Program, enlarged, enlarges};
use super::samples::{self, Survey, mask_rule};
use super::{Batch, BuildContext, BuildTask, Facts, Loss, Mode, SurveyContext, Task, TaskError, Totals};
use crate::data::Dataset;
use crate::models::{self, ModelError, Registry, UnetConfig};

/// The task `segment`. Its loss is a sum over pixels, without `data.ignore` and unreadable samples.
pub struct Segment {
    model: ImageNetwork,
    facts: Facts,
    classes: usize,
    /// The value of mask pixels to ignore.
    ignore: i64,
}

impl BuildTask for Segment {
    type Survey = Survey;

    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
        samples::survey(recipe, 1, context)
    }

    fn build(recipe: &Recipe, survey: Survey, context: BuildContext<'_>) -> Result<Self, TaskError> {
        let sets = samples::sets(recipe, survey, context.local_ranks, || Ok(0))?;
        let size = sets.size;
        let model = match recipe.program() {
            Some(_) => ImageNetwork::Exported(Box::new(exported(
                recipe,
                sets.train.as_ref(),
                size,
                context.registry,
            )?)),
            None => ImageNetwork::Built(unet(recipe, size, context.registry)?),
        };
        let (classes, ignore) = (sets.classes, mask_rule(recipe).ignore);
        let (width, height) = size;
        let facts = Facts { sums: 2 * classes, weight_per_sample: (width * height) as f64, ..sets.facts() };
        let facts = facts.with_model(&model, |model| model.min_micro_batch(width.min(height)));
        Ok(Self { model, facts, classes, ignore })
    }
}

fn unet(
    recipe: &Recipe,
    size: (usize, usize),
    registry: &mut Registry,
) -> Result<Box<dyn models::Classifier>, TaskError> {
    let (data, model) = (&recipe.data, &recipe.model);
    // A loaded recipe has all sizes of its network.
    let config = UnetConfig {
        channels: data.channels,
        classes: data.classes,
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
    (width, height): (usize, usize),
    registry: &mut Registry,
) -> Result<Network, TaskError> {
    let network = Program::load(recipe, registry)?.bind(recipe, train.fields(), &MAIN_OUTPUTS)?;
    let classes = recipe.data.classes;
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

/// Computes the loss of `logits`, N x K x H x W or smaller with K at least `classes`, for the classes `mask`,
/// N x H x W int64. Smaller logits are enlarged. Pixels of value `ignore`, and all pixels of samples with
/// weight 0 in `weights`, N, do not count.
fn pixel_loss(
    logits: &Outputs,
    mask: &Tensor,
    weights: &Tensor,
    ignore: i64,
    classes: usize,
) -> Result<Loss, TaskError> {
    let (_, height, width) = mask.size3()?;
    let logits = logits.map(|logits| enlarged(logits, (height, width)))?;
    let unreadable = weights.f_eq(0.0)?.f_view([-1, 1, 1])?;
    let target = mask.f_masked_fill(&unreadable, ignore)?;
    let counted = target.f_ne(ignore)?;
    // A mean would need the number of counted pixels in the whole step.
    let sum = logits
        .loss(|logits| logits.f_cross_entropy_loss(&target, None::<Tensor>, Reduction::Sum, ignore, 0.0))?;
    let classes = classes as i64;
    let mut predicted = logits.main.f_detach()?.f_argmax(1, false)?;
    if logits.main.size()[1] > classes {
        // Classes that the data lacks are in no area.
        predicted = predicted.f_clamp_max(classes)?;
    }
    Ok(Loss {
        sum,
        weight: counted.f_sum(Kind::Double)?,
        sums: areas(&predicted, &target, &counted, classes)?,
    })
}

/// Counts the pixels of each class: [intersections, unions] of mask and prediction, 2 x classes, float64.
/// `predicted` and `target` are classes; only pixels with `counted` true count.
fn areas(predicted: &Tensor, target: &Tensor, counted: &Tensor, classes: i64) -> Result<Tensor, TchError> {
    let one = Tensor::f_ones([1], (Kind::Double, target.device()))?;
    let each = one.f_expand([target.numel() as i64], false)?;
    let count = |values: &Tensor, among: &Tensor| {
        // Ignored pixels have a separate bin, because selecting pixels would wait for the GPU.
        let bins = values.f_where_scalarother(among, classes)?.f_reshape([-1])?;
        Tensor::f_zeros([classes + 1], (Kind::Double, target.device()))?
            .f_scatter_add_(0, &bins, &each)?
            .f_narrow(0, 0, classes)
    };
    let right = counted.f_logical_and(&predicted.f_eq_tensor(target)?)?;
    let intersections = count(target, &right)?;
    let unions = count(target, counted)?.f_add(&count(predicted, counted)?)?.f_sub(&intersections)?;
    Tensor::f_cat(&[intersections, unions], 0)
}

impl Task for Segment {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let logits = self.model.logits(batch, mode)?;
        pixel_loss(&logits, batch.field("mask")?, &batch.weights, self.ignore, self.classes)
    }

    /// Returns the mean intersection over union of the classes in mask or prediction, and the pixel accuracy.
    fn figures(&self, totals: &Totals) -> Vec<(&'static str, f64)> {
        let (intersections, unions) = totals.sums.split_at(self.classes);
        let both = intersections.iter().zip(unions);
        let occurring = both.filter(|(_, union)| **union > 0.0);
        let ratios: Vec<f64> = occurring.map(|(both, either)| both / either).collect();
        let right: f64 = intersections.iter().sum();
        vec![
            ("mean_iou", ratios.iter().sum::<f64>() / ratios.len() as f64),
            ("pixel_accuracy", right / totals.weight),
        ]
    }
}

#[cfg(test)]
mod tests;
