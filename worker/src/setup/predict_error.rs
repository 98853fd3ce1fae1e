//! The errors of `dtrain predict`.

use std::io;
use std::path::PathBuf;

use dtrain_common::files::remedy;
use thiserror::Error;

/// An error of a prediction's request, its inputs or its output.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum PredictError {
    #[error("{} exists; name another output with -o, or remove it", .0.display())]
    Exists(PathBuf),
    #[error(
        "{} holds the parts of another prediction, which differs in {}; finish that one by its own command, remove the folder, or \
         name another output with -o", .0.display(), .1.join(", ")
    )]
    OtherRequest(PathBuf, Vec<String>),
    #[error("-o {}: {task} {what}; {remedy}", out.display())]
    Ending { out: PathBuf, task: &'static str, what: &'static str, remedy: String },
    #[error("--output {name}: the network has no such output; it has {}", known.join(", "))]
    NoOutput { name: String, known: Vec<String> },
    #[error(
        "no output of the program is known as a prediction: model.figures and model.loss name none that has the shape of its target, and \
         none is named logits, out or output with the shape of a target; write outputs as they are with --output, it has {}", .0.join(", ")
    )]
    NameOutputs(Vec<String>),
    #[error("{flag} has no effect here: {reason}; leave it out")]
    NoEffect { flag: &'static str, reason: &'static str },
    #[error("--split {name}: the data has no such set; name one of {}", known.join(", "))]
    NoSplit { name: String, known: Vec<String> },
    #[error(
        "--split: the data is generated or one long text, which has no inputs by name; name inputs in its place"
    )]
    NoSplits,
    #[error("{}: {what}; {remedy}", path.display())]
    Input { path: PathBuf, what: &'static str, remedy: &'static str },
    #[error("none of the {count} inputs can be read; the first, {first}: {reason}")]
    AllUnreadable { count: usize, first: String, reason: String },
    #[error(
        "the network's program {} {what}: a checkpoint holds the weights alone; name the program of this run with \
         --set model.file=PATH", path.display()
    )]
    Program { path: PathBuf, what: &'static str },
    #[error(
        "the network takes the text `{field}`, which the inputs lack; name a table (.csv, .jsonl) with {columns}"
    )]
    NoText { field: String, columns: String },
    #[error("a sample of this model is more than one text; name a table (.csv, .jsonl) with the columns {0}")]
    NeedsTable(String),
    #[error("the model knows the numbers of tokens alone, and no text; train with data.tokenizer")]
    NoTokenizer,
    #[error("--windows: a sample of this model has {0} images, which cannot be cut together; leave it out")]
    WindowsOfSeveral(usize),
    #[error("{} is another tokenizer than the model was trained with; restore it from the run's other checkpoints", .0.display())]
    Tokenizer(PathBuf),
    #[error(
        "a sample of this model is an episode: queries need labelled images; name a folder of class folders with --support"
    )]
    Episodes,
    #[error(
        "--support {} {found}; give {ways} folders, one for each class, with at least {shots} images each", path.display()
    )]
    Support { path: PathBuf, found: String, ways: usize, shots: usize },
    /// Rank 0 has the error, and prints it.
    #[error("rank 0 cannot begin the prediction")]
    OfRankZero,
    #[error(
        "--output {name}: it has no value for each of the {samples} samples of a batch; name one that has"
    )]
    NoRows { name: String, samples: usize },
    #[error("{}:{line}: {source}; remove the folder of parts to begin again", path.display())]
    Part { path: PathBuf, line: usize, source: serde_json::Error },
    #[error("cannot read or write {}: {source}{}", path.display(), remedy(source))]
    Io { path: PathBuf, source: io::Error },
}

impl PredictError {
    /// Returns whether every rank finds the same, so that rank 0 alone prints it.
    pub(crate) fn is_of_all_ranks(&self) -> bool {
        !matches!(self, Self::Io { .. } | Self::Part { .. } | Self::NoRows { .. })
    }
}
