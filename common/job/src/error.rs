//! Errors in what a job says.

use crate::hostlist::HostlistError;

/// An error in the environment of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A value that is not of its form.
    #[error("the environment variable {name} is {value:?}; expected {expected}")]
    Invalid { name: &'static str, value: String, expected: &'static str },
    /// A list of hosts or of numbers that cannot be read.
    #[error("the environment variable {name} is {value:?}: {error}")]
    List { name: &'static str, value: String, error: HostlistError },
    /// Two sources that cannot both be true, each as `NAME=VALUE`.
    #[error("{one} contradicts {other}{detail}; unset the wrong one")]
    Contradiction { one: String, other: String, detail: String },
    /// A variable without which another one has no meaning.
    #[error("the environment variable {missing} is not set although {present} is")]
    Missing { missing: &'static str, present: &'static str },
}
