//! The manifest of a run's checkpoint, and the rule by which its checkpoints stay.

use std::collections::BTreeMap;

use dtrain_common::manifest::{FORMAT, Manifest};
use dtrain_common::run_dir::Keep;

use crate::run::Training;
use crate::state::Average;

/// The part that a checkpoint lacks when it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owed {
    Nothing,
    /// The evaluation after its step.
    Evaluation,
}

/// The checkpoints after one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// No other follows in this process.
    Nothing,
    Another,
}

impl Rest {
    /// Returns whether the run takes steps after the last one.
    pub(super) fn after(training: &Training<'_>) -> Self {
        let course = &training.course;
        let is_over = course.done >= course.plan.total_steps || course.early_end().is_some();
        if is_over { Self::Nothing } else { Self::Another }
    }
}

/// Returns the manifest of a checkpoint after the last step, without its files and figures.
pub(super) fn manifest(training: &Training<'_>, owed: Owed) -> Manifest {
    let Training { recipe, course, replica, exchange, .. } = training;
    let model = &replica.model;
    let position = course.plan.position(course.done);
    Manifest {
        format: FORMAT,
        dtrain: env!("CARGO_PKG_VERSION").to_owned(),
        libtorch: dtrain_torch_shim::libtorch_version(),
        task: recipe.task.to_string(),
        model: recipe.model_name(),
        classes: model.task.facts().classes,
        class_names: model.task.facts().class_names.to_vec(),
        parameters: model.table.trained_elements(),
        step: course.done,
        epoch: position.epoch,
        step_in_epoch: position.step_in_epoch,
        stage: course.stage().name.clone(),
        samples: course.plan.samples_after(course.done),
        world_size: exchange.ranks().size(),
        loss_scale: replica.precision.state(),
        ema_updates: model.average.as_ref().map(Average::updates),
        extra: model.task.facts().extra.clone(),
        fields: model.task.facts().sample_fields(),
        data: Some(course.data.clone()),
        data_periods: course.plan.data_periods.clone(),
        program: course.program.clone(),
        base: course.base.clone(),
        recipe: course.recipe.clone(),
        metrics: BTreeMap::new(),
        best: course.best.so_far.clone(),
        stopping: course.patience.so_far.clone(),
        evaluation_missing: owed == Owed::Evaluation,
        files: Vec::new(),
    }
}

/// Returns which checkpoints are kept.
pub(super) fn keep(training: &Training<'_>) -> Keep {
    let settings = &training.recipe.checkpoint;
    let keep = Keep::newest(settings.keep);
    match settings.keep_every {
        Some(span) => keep.with_every(span, &training.course.plan.stretches()),
        None => keep,
    }
}
