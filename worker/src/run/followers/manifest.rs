//! What a checkpoint says of itself.

use dtrain_common::manifest::{FORMAT, Manifest};

use super::best::figures_of;
use crate::metrics::EvalRecord;
use crate::run::Training;
use crate::state::Average;

/// What a checkpoint after the last step is, but for its files.
pub(super) fn manifest(
    training: &Training<'_>,
    evaluation: Option<&EvalRecord>,
    evaluation_owed: bool,
) -> Manifest {
    let Training { recipe, course, replica, exchange, .. } = training;
    let model = &replica.model;
    let position = course.plan.position(course.done);
    Manifest {
        format: FORMAT,
        dtrain: env!("CARGO_PKG_VERSION").to_owned(),
        libtorch: dtrain_torch_shim::libtorch_version(),
        task: recipe.task.to_string(),
        model: recipe.model_name().into(),
        classes: model.task.classes(),
        class_names: model.task.class_names().to_vec(),
        parameters: model.table.trained_elements(),
        step: course.done,
        epoch: position.epoch,
        step_in_epoch: position.step_in_epoch,
        stage: course.stage().name.clone(),
        samples: course.plan.samples_after(course.done),
        world_size: exchange.ranks().size(),
        loss_scale: replica.precision.state(),
        ema_updates: model.average.as_ref().map(Average::updates),
        extra: model.task.extra(),
        data: Some(course.data.clone()),
        recipe: (*recipe).clone(),
        metrics: evaluation.map(figures_of).unwrap_or_default(),
        best: course.best.so_far().cloned(),
        evaluation_owed,
        files: Vec::new(),
    }
}
