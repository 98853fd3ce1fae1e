//! Which settings make an experiment, and how two recipes differ in them. The rest (where the data lies, how long the
//! run is, how the machine cuts a step up, what is kept and printed) may change between a run and its continuation.

use std::fmt::{Debug, Display};

use super::Recipe;

impl Recipe {
    /// The settings of the experiment in which this recipe and `other` differ, as (key, value here, value there).
    pub fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        std::iter::zip(self.experiment(), other.experiment())
            .filter(|((_, mine), (_, theirs))| mine != theirs)
            .map(|((key, mine), (_, theirs))| (key.into(), mine, theirs))
            .collect()
    }

    /// Every setting of the experiment with its value in words, always the same keys in the same order.
    pub(super) fn experiment(&self) -> Vec<(&'static str, String)> {
        let Self {
            task,
            data,
            model,
            train,
            optim,
            ..
        } = self;
        vec![
            ("task", text(task)),
            ("data.kind", text(&data.kind)),
            ("data.train", text(&data.train)),
            ("data.test", text(&data.test)),
            ("data.image_size", plain(&data.image_size)),
            ("data.classes", plain(&data.classes)),
            ("data.train_samples", plain(&data.train_samples)),
            ("data.test_samples", plain(&data.test_samples)),
            ("data.mean", plain(&data.mean)),
            ("data.std", plain(&data.std)),
            ("data.augment", text(&data.augment)),
            ("model.name", text(&model.name)),
            ("train.effective_batch", plain(&train.effective_batch)),
            ("train.seed", plain(&train.seed)),
            ("train.last_batch", text(&train.last_batch)),
            ("optim.name", text(&optim.name)),
            ("optim.lr", plain(&optim.lr)),
            ("optim.reference_batch", optional(&optim.reference_batch)),
            ("optim.scaling", text(&optim.scaling)),
            ("optim.weight_decay", optional(&optim.weight_decay)),
            ("optim.betas", optional(&optim.betas)),
            ("optim.eps", optional(&optim.eps)),
            ("optim.momentum", optional(&optim.momentum)),
            ("optim.nesterov", optional(&optim.nesterov)),
            ("optim.clip", optional(&optim.clip)),
            ("optim.schedule.name", text(&optim.schedule.name)),
            (
                "optim.schedule.warmup",
                optional(&optim.schedule.warmup.map(|span| span.to_string())),
            ),
            ("optim.schedule.min_lr", optional(&optim.schedule.min_lr)),
        ]
    }
}

fn text(value: &impl Display) -> String {
    format!("{:?}", value.to_string())
}

fn plain(value: &impl Debug) -> String {
    format!("{value:?}")
}

fn optional(value: &Option<impl Debug>) -> String {
    value.as_ref().map_or_else(|| "not set".into(), plain)
}
