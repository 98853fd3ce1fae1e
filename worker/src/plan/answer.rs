//! The answer of `dtrain plan`.

use serde::{Deserialize, Serialize};

use super::solve::Choice;
use super::{Gpu, Prediction, Subject, Way};
use dtrain_common::exit::ExitStatus;

/// The whole answer; `--json` writes it as one object on a line. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The stage that it is about, where one was named.
    pub stage: Option<String>,
    /// What is planned for.
    pub subject: Subject,
    /// Ranks, each on a GPU of its own.
    pub nproc: usize,
    /// How the predictions came about.
    pub way: Way,
    /// What is not given to tensors of every GPU.
    pub margin: Margin,
    /// `memory.budget`, where it is a size: no row has more.
    pub budget: Option<u64>,
    /// A rank's whole share at once, and nothing computed again: what the times of rows and advice compare with.
    pub plain: Prediction,
    /// One row for each GPU, in the order asked for.
    pub rows: Vec<Row>,
    /// What saves memory against the plain cut, each alone; most first.
    pub advice: Vec<Advice>,
    /// What saves memory against the smallest cut, where that does not fit somewhere.
    pub helps: Vec<Advice>,
    /// What makes the result depend on the micro-batch.
    pub warnings: Vec<String>,
}

/// The margin of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Margin {
    /// Taken off first.
    pub context_bytes: u64,
    /// Taken off the rest.
    pub fragmentation_percent: u64,
}

/// What was chosen for a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The GPU.
    pub gpu: Gpu,
    /// What tensors may take of it, in bytes.
    pub budget: u64,
    /// The cut.
    #[serde(flatten)]
    pub choice: Choice,
}

/// Whether anything fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// On one of the GPUs at least.
    Fits,
    /// On none.
    NothingFits,
}

impl Outcome {
    /// The exit code's meaning: 3 where nothing fits.
    pub(crate) fn exit_status(self) -> ExitStatus {
        match self {
            Self::Fits => ExitStatus::Success,
            Self::NothingFits => ExitStatus::OutOfMemory,
        }
    }
}

/// One way to save memory, and its computed effect against a cut. Predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Advice {
    /// What to do, in words.
    pub what: String,
    /// The setting that does it, as `--set` takes it; none where a section is to be removed.
    pub setting: Option<String>,
    /// The highest memory with it, in bytes.
    pub peak: u64,
    /// So many bytes less.
    pub saves: u64,
    /// The expected time of a step, against the cut's.
    pub relative_time: f64,
}
