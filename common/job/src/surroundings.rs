//! The sources of what is known of a job: variables, files and programs.

use crate::error::JobError;
use std::fmt;
use std::path::Path;

/// The sources of a job, as functions. Each returns `None` for a thing that does not exist.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Returns the value of an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// Returns the text of a file.
    pub file: &'a dyn Fn(&Path) -> Option<String>,
    /// Runs a program of the batch system and returns its output. Called only for what has no other source.
    pub command: &'a dyn Fn(&[&str]) -> Option<String>,
}

/// A number and the variable that it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    pub value: usize,
    pub source: &'static str,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.source, self.value)
    }
}

impl Surroundings<'_> {
    /// Returns a variable without surrounding blanks; `None` if it is empty or Slurm's `(null)`.
    pub(crate) fn text(self, name: &str) -> Option<String> {
        let text = (self.variable)(name)?;
        let text = text.trim();
        (!text.is_empty() && text != "(null)").then(|| text.to_owned())
    }

    /// Returns a variable that is a whole number.
    pub(crate) fn number(self, source: &'static str) -> Result<Option<Number>, JobError> {
        let Some(value) = self.text(source) else { return Ok(None) };
        match value.parse() {
            Ok(value) => Ok(Some(Number { value, source })),
            Err(_) => {
                Err(JobError::Invalid { name: source, value, expected: "a whole number of at least 0" })
            }
        }
    }
}
