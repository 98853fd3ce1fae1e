//! What a worker is asked to do.

use std::path::PathBuf;

use dtrain_common::run_dir::Resume;

/// What a worker is asked to do.
#[derive(Debug, Clone)]
pub struct Request {
    /// A recipe's path or the name of an embedded one.
    pub recipe: String,
    /// Values that override the recipe's, as `key=value`.
    pub overrides: Vec<String>,
    /// Where the run writes; by default a new folder under `runs/`.
    pub run_dir: Option<PathBuf>,
    /// Where the run begins.
    pub resume: Resume,
    /// The launcher has prepared the run directory and holds its lock.
    pub prepared: bool,
    /// What is asked for instead of a training, as JSON: see `dtrain_common::job::Job`.
    pub job: Option<String>,
}
