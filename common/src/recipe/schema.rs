//! Every key of a recipe with the values it takes: the one place that knows names, types and ranges. What depends on
//! several keys is in `validate`.

use toml::{Table, Value};

use super::choices::{Amp, Augment, DataKind, LastBatch, ModelName, OptimName, ScheduleName, Task};
use super::hints::{describe, nearest, one_of, quoted, unknown};
use super::load::Problem;
use crate::lr::Scaling;
use crate::units::Span;

/// A key and the values it takes.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// A section with keys of its own.
    Section(&'static [Key]),
    /// One of these words; the second list holds those that a later version will take.
    Choice(&'static [&'static str], &'static [&'static str]),
    /// A whole number in this range.
    Whole(i64, i64),
    /// "auto" or a whole number in this range.
    AutoOrWhole(i64, i64),
    /// A number of this range.
    Number(Range),
    /// So many numbers of this range.
    Numbers(usize, Range),
    /// true or false.
    Flag,
    /// A length of training; may it be zero?
    Span { zero: bool },
    /// A path.
    Path,
    /// A folder below another.
    FolderName,
    /// A key that a later version will have.
    Planned,
}

/// A range of finite numbers.
#[derive(Clone, Copy)]
pub(super) enum Range {
    Any,
    AtLeastZero,
    AboveZero,
    /// 0 included, 1 not.
    BelowOne,
}

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind }
}

const MAX: i64 = i64::MAX;
/// Larger batches and data sets than any; keeps products of them far from overflow.
const MAX_COUNT: i64 = 1 << 40;

use Kind::{AutoOrWhole, Choice, Flag, FolderName, Number, Numbers, Path, Planned, Section, Whole};

pub(super) const RECIPE: &[Key] = &[
    key(
        "task",
        Choice(
            Task::NAMES,
            &[
                "segment",
                "cod",
                "fgvc",
                "elevation",
                "few-shot",
                "reasoning-seg",
                "lm",
                "torchscript",
            ],
        ),
    ),
    key(
        "data",
        Section(&[
            key("kind", Choice(DataKind::NAMES, &[])),
            key("root", Path),
            key("train", FolderName),
            key("test", FolderName),
            key("image_size", Whole(1, 4096)),
            key("workers", AutoOrWhole(1, 1024)),
            key("classes", Whole(2, 1 << 20)),
            key("train_samples", Whole(1, MAX_COUNT)),
            key("test_samples", Whole(1, MAX_COUNT)),
            key("mean", Numbers(3, Range::Any)),
            key("std", Numbers(3, Range::AboveZero)),
            key("augment", Choice(Augment::NAMES, &[])),
        ]),
    ),
    key(
        "model",
        Section(&[
            key(
                "name",
                Choice(ModelName::NAMES, &["resnet50", "resnet101", "resnet152"]),
            ),
            key("weights", Path),
        ]),
    ),
    key(
        "train",
        Section(&[
            key("effective_batch", Whole(1, MAX_COUNT)),
            key("epochs", Whole(1, MAX_COUNT)),
            key("steps", Whole(1, MAX_COUNT)),
            key("seed", Whole(0, MAX)),
            key("last_batch", Choice(LastBatch::NAMES, &[])),
        ]),
    ),
    key(
        "optim",
        Section(&[
            key("name", Choice(OptimName::NAMES, &[])),
            key("lr", Number(Range::AtLeastZero)),
            key("reference_batch", Whole(1, MAX_COUNT)),
            key("scaling", Choice(Scaling::NAMES, &[])),
            key("weight_decay", Number(Range::AtLeastZero)),
            key("betas", Numbers(2, Range::BelowOne)),
            key("eps", Number(Range::AboveZero)),
            key("momentum", Number(Range::BelowOne)),
            key("nesterov", Flag),
            key("clip", Number(Range::AboveZero)),
            key(
                "schedule",
                Section(&[
                    key(
                        "name",
                        Choice(ScheduleName::NAMES, &["linear", "step", "polynomial"]),
                    ),
                    key("warmup", Kind::Span { zero: true }),
                    key("min_lr", Number(Range::AtLeastZero)),
                ]),
            ),
            key("group", Planned),
        ]),
    ),
    key(
        "precision",
        Section(&[
            key("amp", Choice(Amp::NAMES, &["bf16", "fp16"])),
            key("loss_scale", Planned),
        ]),
    ),
    key(
        "memory",
        Section(&[
            key("micro_batch", AutoOrWhole(1, MAX_COUNT)),
            key("budget", Planned),
            key("recompute", Planned),
            key("shard_optimizer", Planned),
        ]),
    ),
    key(
        "checkpoint",
        Section(&[
            key("every", Kind::Span { zero: false }),
            key("keep", Whole(1, MAX_COUNT)),
            key("best", Planned),
        ]),
    ),
    key("log", Section(&[key("every_steps", Whole(1, MAX))])),
    key("ema", Planned),
    key("stage", Planned),
];

/// Everything in `table` that is no key of a recipe or no value of its key.
pub(super) fn check(table: &Table) -> Vec<Problem> {
    let mut problems = Vec::new();
    check_section(RECIPE, &[], table, &mut problems);
    for required in ["task", "data"] {
        if !table.contains_key(required) {
            let remedy = match required {
                "task" => "write task = \"classify\" above the first section",
                _ => "add [data] with root = \"...\", or with kind = \"generated\"",
            };
            problems.push(Problem::at(required, format!("missing; {remedy}")));
        }
    }
    problems
}

fn check_section(keys: &'static [Key], path: &[String], table: &Table, problems: &mut Vec<Problem>) {
    for (name, value) in table {
        let mut path = path.to_vec();
        path.push(name.clone());
        match keys.iter().find(|key| key.name == name) {
            None => problems.push(Problem {
                message: unknown(keys, &path),
                path,
            }),
            Some(Key {
                kind: Section(inner), ..
            }) => match value {
                Value::Table(table) => check_section(inner, &path, table, problems),
                other => {
                    let message = format!("expected a section [{}], got {}", path.join("."), describe(other));
                    problems.push(Problem { path, message });
                }
            },
            Some(key) => {
                if let Err(message) = check_value(&key.kind, value) {
                    problems.push(Problem { path, message });
                }
            }
        }
    }
}

const NOT_BUILT: &str = "is not built in this version of dtrain";

fn check_value(kind: &Kind, value: &Value) -> Result<(), String> {
    let expected = |what: &str| Err(format!("expected {what}, got {}", describe(value)));
    match kind {
        Section(_) => Ok(()),
        Planned => Err(format!("this setting {NOT_BUILT}; remove it")),
        Choice(built, planned) => match value.as_str() {
            Some(word) if built.contains(&word) => Ok(()),
            Some(word) if planned.contains(&word) => {
                Err(format!("{word:?} {NOT_BUILT}, which has {}", quoted(built)))
            }
            Some(word) => {
                let hint = nearest(word, built)
                    .map(|name| format!("; did you mean {name:?}?"))
                    .unwrap_or_default();
                Err(format!(
                    "expected {}, got {}{hint}",
                    one_of(built),
                    describe(value)
                ))
            }
            None => expected(&one_of(built)),
        },
        Whole(min, max) => match value.as_integer() {
            Some(number) if (*min..=*max).contains(&number) => Ok(()),
            _ => expected(&whole(*min, *max)),
        },
        AutoOrWhole(min, max) => match (value.as_integer(), value.as_str()) {
            (Some(number), _) if (*min..=*max).contains(&number) => Ok(()),
            (_, Some("auto")) => Ok(()),
            _ => expected(&format!("\"auto\" or {}", whole(*min, *max))),
        },
        Number(range) => match number(value) {
            Some(number) if range.contains(number) => Ok(()),
            _ => expected(&format!("a number {}", range.describe())),
        },
        Numbers(count, range) => match value.as_array() {
            Some(list)
                if list.len() == *count
                    && list.iter().all(|v| number(v).is_some_and(|n| range.contains(n))) =>
            {
                Ok(())
            }
            _ => expected(&format!("a list of {count} numbers, each {}", range.describe())),
        },
        Flag if value.is_bool() => Ok(()),
        Flag => expected("true or false"),
        Kind::Span { zero } => span(value, *zero),
        Path => match value.as_str() {
            Some(text) if !text.trim().is_empty() && !text.contains('\0') => Ok(()),
            _ => expected("a path in quotes"),
        },
        FolderName => match value.as_str() {
            Some(text) if is_folder_name(text) => Ok(()),
            _ => expected("the name of a folder below data.root, with no `..` and no leading `/`"),
        },
    }
}

fn span(value: &Value, zero: bool) -> Result<(), String> {
    let Some(text) = value.as_str() else {
        return Err(format!(
            "expected a length of training such as \"5 epochs\" or \"100 steps\", got {}",
            describe(value)
        ));
    };
    let words: Vec<_> = text.split_whitespace().collect();
    if matches!(
        words[..],
        [_, "s" | "min" | "h" | "minutes" | "hours" | "seconds"]
    ) {
        return Err(format!(
            "a length in time ({text:?}) {NOT_BUILT}; give it in epochs or steps"
        ));
    }
    match text.parse::<Span>() {
        Err(error) => Err(error.to_string()),
        Ok(span) if span.is_zero() && !zero => {
            Err(format!("{text:?} is no time at all; give at least 1 step"))
        }
        Ok(_) => Ok(()),
    }
}

/// Whether a path stays below the folder that it is joined to.
fn is_folder_name(text: &str) -> bool {
    use std::path::Component;
    let mut parts = std::path::Path::new(text).components().peekable();
    !text.contains('\0') && parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

impl Range {
    fn contains(self, number: f64) -> bool {
        number.is_finite()
            && match self {
                Self::Any => true,
                Self::AtLeastZero => number >= 0.0,
                Self::AboveZero => number > 0.0,
                Self::BelowOne => (0.0..1.0).contains(&number),
            }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Any => "that is finite",
            Self::AtLeastZero => "of at least 0",
            Self::AboveZero => "above 0",
            Self::BelowOne => "of at least 0 and below 1",
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    value
        .as_float()
        .or_else(|| value.as_integer().map(|whole| whole as f64))
}

fn whole(min: i64, max: i64) -> String {
    if max >= MAX_COUNT {
        format!("a whole number of at least {min}")
    } else {
        format!("a whole number from {min} to {max}")
    }
}
