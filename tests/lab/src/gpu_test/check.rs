//! A check of the suite.

use anyhow::Result;

use super::finding::Finding;
use super::suite::Suite;

type Run = Box<dyn Fn(&Suite<'_>) -> Result<Finding>>;

/// One line of the table.
pub(super) struct Check {
    pub(super) name: String,
    /// Estimated duration on one GPU and two cores, in seconds: decides which checks share a call.
    pub(super) seconds: u32,
    pub(super) run: Run,
}
