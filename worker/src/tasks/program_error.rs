//! Errors for exported programs that do not fit the data or the task.

use std::path::{Path, PathBuf};

use dtrain_torch_shim::ShimError;
use thiserror::Error;

/// A program that cannot be trained. Every variant names the file.
#[derive(Debug, Error)]
pub enum ProgramError {
    #[error("model.libraries: {} cannot be loaded: {source}", path.display())]
    Library { path: PathBuf, source: ShimError },
    /// A program beside the network; the message names its file.
    #[error("{0}")]
    Own(String),
    #[error("{}: {unfit}", path.display())]
    Unfit { path: PathBuf, unfit: Box<Unfit> },
}

/// The reason why a program does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unfit {
    #[error(
        "no field of the data feeds the input `{input}`: the data has {}; set model.inputs = {{ {input} = \"FIELD\" }} with \
         one of them, or export the model without this input",
        names(fields)
    )]
    Unfed { input: String, fields: Vec<String> },
    #[error("model.inputs feeds `{input}` from {field:?}, which the data lacks; it has {}", names(fields))]
    NoField { input: String, field: String, fields: Vec<String> },
    #[error(
        "{key} names {name:?}, which the program lacks; {}it has {}",
        suggestion(name, known),
        names(known)
    )]
    NoPort { key: String, name: String, known: Vec<String> },
    #[error(
        "the input `{input}` takes {takes}, but the field `{field}` of the data is {has}; set model.inputs to another field, or \
         export the model with an input of this type"
    )]
    Kind { input: String, takes: String, field: String, has: &'static str },
    #[error(
        "the input `{input}` has a fixed batch of {batch}; import the model again with a dynamic first dimension"
    )]
    FixedBatch { input: String, batch: i64 },
    #[error(
        "the input `{input}` takes {takes} for each sample, but the field `{field}` of the data has {has}; {remedy}"
    )]
    Shape { input: String, takes: String, field: String, has: String, remedy: String },
    #[error("{0}")]
    Sizes(String),
    #[error("the length of its texts is not fixed; set model.context to the number of tokens of a sample")]
    NoContext,
    #[error("the program has no BatchNorm with running statistics; remove model.batchnorm from the recipe")]
    NoBatchNorm,
    #[error("the program has no outputs; export a model that returns tensors")]
    NoOutputs,
    #[error("the program has {}; set model.output to the name of the main one", names(.0))]
    NoMain(Vec<String>),
    #[error(
        "{key} names the classes {name:?}, but the fields with a class for each sample are {}",
        names(classes)
    )]
    NoClasses { key: String, name: String, classes: Vec<String> },
    #[error("{key} takes {what}, {}", target(setting, name.as_deref(), fields))]
    NoTarget {
        key: String,
        what: &'static str,
        setting: &'static str,
        name: Option<String>,
        fields: Vec<String>,
    },
    #[error("{key}: {reason}")]
    NoBytes { key: String, reason: String },
    #[error("{key} names the target {name:?}, but the fields with targets are {}", names(fields))]
    NoLossTarget { key: String, name: String, fields: Vec<String> },
    #[error("{key}: `{loss}` does not fit the field `{field}`, whose losses are {}", names(takes))]
    LossOfField { key: String, loss: String, field: String, takes: Vec<String> },
    #[error(
        "model.loss takes only outputs such as `{0}` that the program lacks in evaluation; add a loss of an output that it has there"
    )]
    Untested(String),
    #[error(
        "the program returns no loss, and a stage has no loss; set model.loss, which applies to stages without `loss`"
    )]
    NoLoss,
    #[error("an output of the program is the figure {0:?} too; set label in model.figures to another name")]
    TwoFigures(String),
    #[error(
        "data.mix mixes images and their targets, but the program returns its loss and has no input for `{field}`; export one that \
         mixes the losses of both targets, or remove data.mix"
    )]
    NotMixed { field: String },
    #[error(
        "data.mix mixes images, but the program also takes `{field}`; export one that takes images alone, or remove data.mix"
    )]
    MixedInput { field: String },
    #[error("the output `{output}` has the shape {shape} for N samples, but {expected}")]
    Output { output: String, shape: String, expected: String },
}

impl ProgramError {
    /// Returns the error of a program in a file.
    pub(super) fn of(path: &Path, unfit: Unfit) -> Self {
        Self::Unfit { path: path.to_owned(), unfit: Box::new(unfit) }
    }
}

impl Unfit {
    /// Returns the message about a built-in network.
    pub(super) fn of_network(&self) -> String {
        self.to_string().replace("the program", "the network")
    }
}

fn names<S: AsRef<str>>(all: &[S]) -> String {
    let all: Vec<_> = all.iter().map(|name| format!("`{}`", name.as_ref())).collect();
    match all.as_slice() {
        [] => "none".to_owned(),
        all => all.join(", "),
    }
}

/// Returns the end of a sentence about a field that the data lacks: its remedy.
fn target(setting: &str, name: Option<&str>, fields: &[String]) -> String {
    match (name, fields) {
        (_, []) => "which no field of the data has; remove it".to_owned(),
        (Some(name), _) => format!("which {name:?} has not; set {setting} to one of {}", names(fields)),
        (None, _) => format!("and no field is named; set {setting} to one of {}", names(fields)),
    }
}

/// Returns "did you mean `X`? " for the nearest name, if one is near.
fn suggestion(name: &str, known: &[String]) -> String {
    let near = known.iter().map(|other| (strsim::normalized_damerau_levenshtein(name, other), other));
    match near.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((likeness, near)) if likeness >= 0.5 => format!("did you mean `{near}`? "),
        _ => String::new(),
    }
}
