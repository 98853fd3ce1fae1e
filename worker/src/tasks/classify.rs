//! Image classification: cross-entropy on the logits, and accuracy.

use dtrain_recipe::{ModelName, Recipe};
use tch::{Reduction, Tensor};

use super::network::{ImageNetwork, MAIN_OUTPUTS, Network, Program};
use super::per_sample::loss_of;
use super::samples::{self, Sets, Survey};
use super::{Batch, BuildContext, BuildTask, Facts, Loss, Mode, SurveyContext, Task, TaskError, Totals};
use crate::models::{self, Architecture, Registry, VitConfig};

/// The task `classify`.
pub struct Classify {
    model: ImageNetwork,
    facts: Facts,
}

impl BuildTask for Classify {
    type Survey = Survey;
    const DRAWS_ONLY_WEIGHTS: bool = true;

    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
        /// One class teaches nothing.
        const LEAST_CLASSES: usize = 2;
        samples::survey(recipe, LEAST_CLASSES, context)
    }

    fn build(recipe: &Recipe, survey: Survey, context: BuildContext<'_>) -> Result<Self, TaskError> {
        let sets = samples::sets(recipe, survey, context.local_ranks, || Ok(0))?;
        let model = match recipe.program() {
            Some(_) => ImageNetwork::Exported(Box::new(exported(recipe, &sets, context.registry)?)),
            None => {
                let channels = recipe.data.channels;
                let model = models::build(architecture(recipe), channels, sets.classes, context.registry)?;
                ImageNetwork::Built(model)
            }
        };
        let facts = Facts { sums: 1, ..sets.facts() };
        let facts = facts.with_model(&model, |model| model.min_micro_batch(recipe.data.image_size));
        Ok(Self { model, facts })
    }
}

fn exported(recipe: &Recipe, sets: &Sets, registry: &mut Registry) -> Result<Network, TaskError> {
    let network = Program::load(recipe, registry)?.bind(recipe, sets.train.fields(), &MAIN_OUTPUTS)?;
    let classes = sets.classes;
    let expected = format!(
        "task = \"classify\" needs logits, N x K with K at least the {classes} classes of the data; set model.output to another \
         output, or import the model again with this number of classes"
    );
    let enough = |k: Option<i64>| k.is_none_or(|k| k >= classes as i64);
    network.check_outputs(&expected, &|shape| matches!(shape, &[None, k] if enough(k)))?;
    Ok(network)
}

/// Returns the model of a loaded recipe, which has a name and sizes that fit its task.
fn architecture(recipe: &Recipe) -> Architecture {
    let model = &recipe.model;
    match model.name {
        Some(ModelName::Resnet34) => Architecture::ResNet34,
        Some(ModelName::Resnet50) => Architecture::ResNet50,
        Some(ModelName::Resnet101) => Architecture::ResNet101,
        Some(ModelName::Resnet152) => Architecture::ResNet152,
        Some(ModelName::Vit) => Architecture::Vit(VitConfig {
            image_size: recipe.data.image_size,
            patch: model.patch.unwrap_or(16),
            width: model.width.unwrap_or(192),
            depth: model.depth.unwrap_or(12),
            heads: model.heads.unwrap_or(3),
        }),
        Some(ModelName::Resnet18 | ModelName::Unet | ModelName::Gpt) | None => Architecture::ResNet18,
    }
}

impl Task for Classify {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let labels = batch.field("label")?;
        let logits = self.model.logits(batch, mode)?;
        let losses = logits
            .loss(|logits| logits.f_cross_entropy_loss(labels, None::<Tensor>, Reduction::None, -100, 0.0))?;
        let right = logits.main.f_argmax(1, false)?.f_eq_tensor(labels)?;
        loss_of(&losses, Some(right), &batch.weights)
    }

    fn figures(&self, totals: &Totals) -> Vec<(&'static str, f64)> {
        vec![("accuracy", totals.sums[0] / totals.weight)]
    }
}
