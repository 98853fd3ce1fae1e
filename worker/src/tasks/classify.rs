//! Image classification: cross-entropy on the logits, and how many samples were classified rightly.

use std::sync::Arc;

use dtrain_common::recipe::{ModelName, Recipe};
use tch::{Kind, Reduction, Tensor};

use super::images::{self, ImageSets};
use super::{Batch, BuildTask, Loss, Mode, Task, TaskError, Totals};
use crate::data::Dataset;
use crate::models::{self, Architecture, Classifier, Registry};

/// The task `classify`.
pub struct Classify {
    model: Box<dyn Classifier>,
    sets: ImageSets,
    image_size: usize,
}

impl BuildTask for Classify {
    type Survey = images::Survey;

    fn survey(
        recipe: &Recipe,
        threads: usize,
        say: &mut dyn FnMut(String),
    ) -> Result<Self::Survey, TaskError> {
        images::survey(recipe, threads, say)
    }

    fn build(recipe: &Recipe, survey: Self::Survey, registry: &mut Registry) -> Result<Self, TaskError> {
        let sets = images::sets(recipe, survey);
        let architecture = match recipe.model.name {
            ModelName::Resnet18 => Architecture::ResNet18,
            ModelName::Resnet34 => Architecture::ResNet34,
        };
        Ok(Self {
            model: models::build(architecture, sets.classes, registry)?,
            sets,
            image_size: recipe.data.image_size,
        })
    }
}

impl Task for Classify {
    fn train_set(&self) -> Arc<dyn Dataset> {
        Arc::clone(&self.sets.train)
    }

    fn test_set(&self) -> Arc<dyn Dataset> {
        Arc::clone(&self.sets.test)
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let labels = batch.field("label")?;
        let logits = self.model.forward(batch.field("image")?, mode == Mode::Train)?;
        let losses = logits.f_cross_entropy_loss(labels, None::<Tensor>, Reduction::None, -100, 0.0)?;
        let right = logits.f_argmax(1, false)?.f_eq_tensor(labels)?;
        Ok(Loss {
            sum: losses.f_mul(&batch.weights)?.f_sum(Kind::Float)?,
            weight: batch.weights.f_sum(Kind::Double)?,
            sums: right
                .f_to_kind(Kind::Double)?
                .f_mul(&batch.weights)?
                .f_sum(Kind::Double)?
                .f_view([1])?,
        })
    }

    fn sums(&self) -> usize {
        1
    }

    fn metrics(&self, totals: &Totals) -> Vec<(&'static str, f64)> {
        vec![("accuracy", totals.sums[0] / totals.weight)]
    }

    fn min_micro_batch(&self) -> usize {
        self.model.min_micro_batch(self.image_size)
    }

    fn describe(&self) -> String {
        format!("{} classes", self.sets.classes)
    }

    fn classes(&self) -> usize {
        self.sets.classes
    }
}
