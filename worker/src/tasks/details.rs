//! What a survey finds besides what a training needs, for `dtrain data`.

use crate::data::{CheckReport, Samples, TextIndex};

/// What a survey finds besides what a training needs.
pub struct Details {
    /// The sets of files as listed, and their checks, in the order of the survey.
    pub checks: Vec<(Samples, CheckReport)>,
    /// The text of the run.
    pub text: Option<TextIndex>,
    /// Reports the name of a set, its checked samples and all its samples.
    pub progress: Progress,
}

/// Reports how many things of how many are done.
pub type Progress = Box<dyn FnMut(&str, usize, usize)>;

impl Details {
    /// Returns details of nothing yet.
    pub fn new(progress: Progress) -> Self {
        Self { checks: Vec::new(), text: None, progress }
    }
}
