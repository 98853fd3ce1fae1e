//! Every key of a recipe with the values it takes: the one place that knows names, types and ranges. What depends on
//! several keys is in `validate`.

use super::choices::{
    Amp, Augment, BatchNorm, Compile, Compress, DataKind, Decay, LastBatch, Loss, Masks, MemoryFormat,
    ModelName, OnFailure, OptimName, Passage, Per, Recompute, Resize, ScheduleName, Task, TestWeights,
    Tokenizer, WeightsMode,
};
use crate::lr::Scaling;

/// A key and the values it takes.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// A section with keys of its own.
    Section(&'static [Key]),
    /// A list of sections with these keys, of which the first so many are required.
    Sections(&'static [Key], usize),
    /// A section with any keys.
    Free,
    /// One of these words; the second list holds those that a later version will take.
    Choice(&'static [&'static str], &'static [&'static str]),
    /// A whole number in this range.
    Whole(i64, i64),
    /// "auto" or a whole number in this range.
    AutoOrWhole(i64, i64),
    /// A number of this range.
    Number(Range),
    /// So many numbers of this range, from the first count to the second.
    Numbers(usize, usize, Range),
    /// true or false.
    Flag,
    /// "auto", true or false.
    AutoOrFlag,
    /// A length of training; may it be zero?
    Span { zero: bool },
    /// A length of training or of time, not zero.
    Every,
    /// At least one length of training, none of them zero.
    Spans,
    /// A number of bytes, of at least so many.
    Size(u64),
    /// "auto", "off" or a number of bytes.
    Cache,
    /// "auto" or a number of bytes.
    Budget,
    /// Max or min and the name of a figure.
    Best,
    /// A name: text that is not empty.
    Name,
    /// A path.
    Path,
    /// A folder below another.
    FolderName,
    /// A list of globs on the names of parameters, possibly empty.
    Globs,
    /// A list of pairs of a regular expression and a replacement, at least one.
    Renames,
    /// One glob or at least one in a list.
    GlobOrGlobs,
}

/// A range of finite numbers.
#[derive(Clone, Copy)]
pub(super) enum Range {
    Any,
    AtLeastZero,
    AtLeastOne,
    AboveZero,
    /// 0 included, 1 not.
    BelowOne,
    /// Neither 0 nor 1.
    Inside,
}

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind }
}

const MAX: i64 = i64::MAX;
/// Larger batches and data sets than any; keeps products of them far from overflow.
pub(super) const MAX_COUNT: i64 = 1 << 40;
/// Wider and deeper networks than any; keeps the arithmetic of their sizes far from overflow.
const MAX_SIZE: i64 = 1 << 16;

use Kind::{
    AutoOrFlag, AutoOrWhole, Choice, Flag, FolderName, Globs, Number, Numbers, Path, Section, Sections, Size,
    Whole,
};

pub(super) const RECIPE: &[Key] = &[
    key(
        "task",
        Choice(
            Task::NAMES,
            &["cod", "fgvc", "elevation", "few-shot", "reasoning-seg"],
        ),
    ),
    key("data", Section(DATA)),
    key("model", Section(MODEL)),
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
    key("optim", Section(OPTIM)),
    key(
        "precision",
        Section(&[
            key("amp", Choice(Amp::NAMES, &[])),
            key("loss_scale", Number(Range::AboveZero)),
            key("tf32", AutoOrFlag),
        ]),
    ),
    key(
        "memory",
        Section(&[
            key("micro_batch", AutoOrWhole(1, MAX_COUNT)),
            key("shard_optimizer", Flag),
            key("budget", Kind::Budget),
            key("recompute", Choice(Recompute::NAMES, &[])),
            key("grow", Flag),
        ]),
    ),
    key(
        "reduce",
        Section(&[
            key("bucket", Size(1 << 10)),
            key("first_bucket", Size(1 << 10)),
            key("overlap", Flag),
            key("compress", Choice(Compress::NAMES, &[])),
        ]),
    ),
    key(
        "ema",
        Section(&[key("decay", Number(Range::Inside)), key("warmup", Flag)]),
    ),
    key(
        "checkpoint",
        Section(&[
            key("every", Kind::Every),
            key("keep", Whole(1, MAX_COUNT)),
            key("keep_every", Kind::Span { zero: false }),
            key("in_memory", Flag),
            key("on_failure", Choice(OnFailure::NAMES, &[])),
            key("best", Kind::Best),
        ]),
    ),
    key(
        "test",
        Section(&[key("weights", Choice(TestWeights::NAMES, &[]))]),
    ),
    key("log", Section(&[key("every_steps", Whole(1, MAX))])),
    key("custom", Kind::Free),
    key("stage", Sections(STAGE, 1)),
];

const DATA: &[Key] = &[
    key("kind", Choice(DataKind::NAMES, &[])),
    key("root", Path),
    key("train", FolderName),
    key("test", FolderName),
    key("train_masks", FolderName),
    key("test_masks", FolderName),
    key("masks", Choice(Masks::NAMES, &[])),
    key("ignore", Whole(0, u16::MAX as i64)),
    key("image_size", Whole(1, 4096)),
    key("resize", Choice(Resize::NAMES, &[])),
    key("channels", Whole(1, 64)),
    key("mean", Numbers(1, 64, Range::Any)),
    key("std", Numbers(1, 64, Range::AboveZero)),
    key("augment", Choice(Augment::NAMES, &[])),
    key("workers", AutoOrWhole(1, 1024)),
    key("cache", Kind::Cache),
    key("classes", Whole(2, 1 << 20)),
    key("train_samples", Whole(1, MAX_COUNT)),
    key("test_samples", Whole(1, MAX_COUNT)),
    key("tokenizer", Choice(Tokenizer::NAMES, &[])),
    key("test_fraction", Number(Range::Inside)),
];

const MODEL: &[Key] = &[
    key("name", Choice(ModelName::NAMES, &[])),
    key("file", Path),
    key("loss", Choice(Loss::NAMES, &[])),
    key("width", Whole(1, MAX_SIZE)),
    key("depth", Whole(1, 1024)),
    key("heads", Whole(1, 1024)),
    key("patch", Whole(1, 4096)),
    key("context", Whole(1, 1 << 20)),
    key("weights", Path),
    key("weights_mode", Choice(WeightsMode::NAMES, &[])),
    key("weights_rename", Kind::Renames),
    key("freeze", Globs),
    key("batchnorm", Choice(BatchNorm::NAMES, &[])),
    key("memory_format", Choice(MemoryFormat::NAMES, &[])),
    key("cudnn_benchmark", AutoOrFlag),
    key("compile", Choice(Compile::NAMES, &[])),
];

const OPTIM: &[Key] = &[
    key("name", Choice(OptimName::NAMES, &[])),
    key("lr", Number(Range::AtLeastZero)),
    key("reference_batch", Whole(1, MAX_COUNT)),
    key("scaling", Choice(Scaling::NAMES, &[])),
    key("weight_decay", Number(Range::AtLeastZero)),
    key("decay", Choice(Decay::NAMES, &[])),
    key("betas", Numbers(2, 2, Range::BelowOne)),
    key("eps", Number(Range::AboveZero)),
    key("momentum", Number(Range::BelowOne)),
    key("nesterov", Flag),
    key("clip", Number(Range::AboveZero)),
    key(
        "schedule",
        Section(&[
            key("name", Choice(ScheduleName::NAMES, &["polynomial"])),
            key("warmup", Kind::Span { zero: true }),
            key("per", Choice(Per::NAMES, &[])),
            key("min_lr", Number(Range::AtLeastZero)),
            key("every", Kind::Span { zero: false }),
            key("milestones", Kind::Spans),
            key("gamma", Number(Range::AboveZero)),
            key("rise", Number(Range::Inside)),
            key("start_factor", Number(Range::AtLeastOne)),
            key("final_factor", Number(Range::AtLeastOne)),
        ]),
    ),
    key("group", Sections(GROUP, 1)),
];

const GROUP: &[Key] = &[
    key("match", Kind::GlobOrGlobs),
    key("lr_factor", Number(Range::AtLeastZero)),
    key("weight_decay", Number(Range::AtLeastZero)),
];

const STAGE: &[Key] = &[
    key("name", Kind::Name),
    key("epochs", Whole(1, MAX_COUNT)),
    key("steps", Whole(1, MAX_COUNT)),
    key("freeze", Globs),
    key(
        "unfreeze",
        Sections(
            &[
                key("at", Number(Range::BelowOne)),
                key("match", Kind::GlobOrGlobs),
            ],
            2,
        ),
    ),
    key("effective_batch", Whole(1, MAX_COUNT)),
    key("micro_batch", AutoOrWhole(1, MAX_COUNT)),
    key("lr", Number(Range::AtLeastZero)),
    key("lr_factor", Number(Range::AtLeastZero)),
    key("group", Sections(GROUP, 1)),
    key("recompute", Choice(Recompute::NAMES, &[])),
    key("loss", Choice(Loss::NAMES, &[])),
    key("schedule", Choice(Passage::NAMES, &[])),
    key("ema", Choice(Passage::NAMES, &[])),
    key("best", Choice(Passage::NAMES, &[])),
];
