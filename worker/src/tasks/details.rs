//! What a survey finds besides what a training needs, for `dtrain data`.

use crate::data::{CheckReport, Samples, TextIndex};

/// What a survey finds besides what a training needs.
pub struct Details {
    /// The sets of files, in the order of the survey.
    pub checks: Vec<Checked>,
    /// The text of the run.
    pub text: Option<TextIndex>,
    /// Reports the name of a set, its checked samples and all its samples.
    pub progress: Progress,
}

/// A set of files.
pub struct Checked {
    /// The use of the set.
    pub kind: SetKind,
    /// As listed.
    pub samples: Samples,
    /// What its check found.
    pub report: CheckReport,
}

/// The use of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetKind {
    /// Samples that a model learns from.
    Training,
    /// Samples that choose the best checkpoint.
    Validation,
    /// Samples of `[test]`.
    Test,
    /// The test set in this folder.
    More(String),
}

impl SetKind {
    /// Returns the word before `samples`.
    pub fn word(&self) -> &str {
        match self {
            Self::Training => "training",
            Self::Validation => "validation",
            Self::Test => "test",
            Self::More(folder) => folder,
        }
    }
}

/// Reports how many things of how many are done.
pub type Progress = Box<dyn FnMut(&str, usize, usize)>;

impl Details {
    /// Returns details of nothing yet.
    pub fn new(progress: Progress) -> Self {
        Self { checks: Vec::new(), text: None, progress }
    }
}
