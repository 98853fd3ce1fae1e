//! Which settings make an experiment, and how two recipes differ in them. The rest (where the data lies, how long the
//! run is, how the machine cuts a step up, what is kept and printed) may change between a run and its continuation.

use std::fmt::{Debug, Display};

use toml::{Table, Value};

use super::{OptimGroup, Recipe, Span, Stage};

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
            ema,
            custom,
            stage,
            ..
        } = self;
        let schedule = &optim.schedule;
        vec![
            ("task", text(task)),
            ("data.kind", text(&data.kind)),
            ("data.train", text(&data.train)),
            ("data.test", text(&data.test)),
            ("data.train_masks", text(&data.train_masks)),
            ("data.test_masks", text(&data.test_masks)),
            ("data.masks", text(&data.masks)),
            ("data.ignore", plain(&data.ignore)),
            ("data.image_size", plain(&data.image_size)),
            ("data.resize", text(&data.resize)),
            ("data.channels", plain(&data.channels)),
            ("data.classes", plain(&data.classes)),
            ("data.train_samples", plain(&data.train_samples)),
            ("data.test_samples", plain(&data.test_samples)),
            ("data.mean", plain(&data.mean)),
            ("data.std", plain(&data.std)),
            ("data.augment", text(&data.augment)),
            ("data.tokenizer", text(&data.tokenizer)),
            ("data.test_fraction", plain(&data.test_fraction)),
            ("model.name", word(model.name)),
            ("model.loss", text(&model.loss)),
            ("model.width", optional(&model.width)),
            ("model.depth", optional(&model.depth)),
            ("model.heads", optional(&model.heads)),
            ("model.patch", optional(&model.patch)),
            ("model.context", optional(&model.context)),
            ("model.freeze", plain(&model.freeze)),
            ("model.batchnorm", text(&model.batchnorm)),
            ("train.effective_batch", plain(&train.effective_batch)),
            ("train.seed", plain(&train.seed)),
            ("train.last_batch", text(&train.last_batch)),
            ("optim.name", text(&optim.name)),
            ("optim.lr", plain(&optim.lr)),
            ("optim.reference_batch", optional(&optim.reference_batch)),
            ("optim.scaling", text(&optim.scaling)),
            ("optim.weight_decay", optional(&optim.weight_decay)),
            ("optim.decay", text(&optim.decay)),
            ("optim.betas", optional(&optim.betas)),
            ("optim.eps", optional(&optim.eps)),
            ("optim.momentum", optional(&optim.momentum)),
            ("optim.nesterov", optional(&optim.nesterov)),
            ("optim.clip", optional(&optim.clip)),
            ("optim.schedule.name", text(&schedule.name)),
            ("optim.schedule.warmup", word(schedule.warmup)),
            ("optim.schedule.per", text(&schedule.per)),
            ("optim.schedule.min_lr", optional(&schedule.min_lr)),
            ("optim.schedule.every", word(schedule.every)),
            ("optim.schedule.milestones", spans(schedule.milestones.as_deref())),
            ("optim.schedule.gamma", optional(&schedule.gamma)),
            ("optim.schedule.rise", optional(&schedule.rise)),
            ("optim.schedule.start_factor", optional(&schedule.start_factor)),
            ("optim.schedule.final_factor", optional(&schedule.final_factor)),
            ("optim.group", groups(&optim.group)),
            ("ema.decay", optional(&ema.map(|ema| ema.decay))),
            ("ema.warmup", optional(&ema.map(|ema| ema.warmup))),
            ("stage", stages(stage)),
            ("custom", table(custom)),
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
    value.as_ref().map_or_else(not_set, plain)
}

fn word(value: Option<impl Display>) -> String {
    value.map_or_else(not_set, |value| text(&value))
}

fn not_set() -> String {
    "not set".into()
}

fn spans(value: Option<&[Span]>) -> String {
    let Some(spans) = value else { return not_set() };
    plain(&spans.iter().map(Span::to_string).collect::<Vec<_>>())
}

fn groups(groups: &[OptimGroup]) -> String {
    let words = groups.iter().map(|group| {
        let decay = group
            .weight_decay
            .map_or_else(String::new, |decay| format!(", weight_decay = {decay:?}"));
        let (patterns, lr_factor) = (&group.patterns, group.lr_factor);
        format!("{{ match = {patterns:?}, lr_factor = {lr_factor:?}{decay} }}")
    });
    format!("[{}]", words.collect::<Vec<_>>().join(", "))
}

/// What the stages make of the experiment: all but their names and how they are cut up. The last one may be made longer, as a
/// run may, where nothing is unfrozen at a part of it.
fn stages(stages: &[Stage]) -> String {
    let words = stages.iter().enumerate().map(|(number, stage)| {
        let ends = number + 1 == stages.len() && stage.unfreeze.iter().all(|entry| entry.at == 0.0);
        let length = |length: Option<u64>| if ends { None } else { length };
        let globs = |globs: &Vec<String>| format!("{globs:?}");
        let unfreeze: Vec<String> = stage
            .unfreeze
            .iter()
            .map(|entry| format!("{{ at = {:?}, match = {:?} }}", entry.at, entry.patterns))
            .collect();
        let stated = [
            ("epochs", length(stage.epochs).map(|epochs| plain(&epochs))),
            ("steps", length(stage.steps).map(|steps| plain(&steps))),
            ("freeze", stage.freeze.as_ref().map(globs)),
            ("unfreeze", listed(unfreeze)),
            (
                "effective_batch",
                stage.effective_batch.map(|batch| plain(&batch)),
            ),
            ("lr", stage.lr.map(|lr| plain(&lr))),
            (
                "lr_factor",
                (stage.lr_factor != 1.0).then(|| plain(&stage.lr_factor)),
            ),
            ("group", (!stage.group.is_empty()).then(|| groups(&stage.group))),
            ("loss", stage.loss.map(|loss| text(&loss))),
            ("schedule", Some(text(&stage.schedule))),
            ("ema", Some(text(&stage.ema))),
        ];
        let stated: Vec<String> = stated
            .into_iter()
            .filter_map(|(key, value)| Some(format!("{key} = {}", value?)))
            .collect();
        format!("{{ {} }}", stated.join(", "))
    });
    format!("[{}]", words.collect::<Vec<_>>().join(", "))
}

fn listed(words: Vec<String>) -> Option<String> {
    (!words.is_empty()).then(|| format!("[{}]", words.join(", ")))
}

/// A table in words, its keys in the order of the alphabet: their order in the file means nothing.
fn table(table: &Table) -> String {
    let mut keys: Vec<&String> = table.keys().collect();
    keys.sort();
    let words = keys
        .into_iter()
        .filter_map(|key| Some(format!("{key} = {}", value(table.get(key)?))));
    format!("{{{}}}", words.collect::<Vec<_>>().join(", "))
}

fn value(of: &Value) -> String {
    match of {
        Value::Table(inner) => table(inner),
        Value::Array(list) => {
            let words: Vec<_> = list.iter().map(value).collect();
            format!("[{}]", words.join(", "))
        }
        other => other.to_string(),
    }
}
