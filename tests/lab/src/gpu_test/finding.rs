//! The result of a check.

use std::collections::BTreeMap;

use crate::report::Verdict;

/// Measured values by name; the name ends with the unit, as in `step_ms`.
pub(super) type Figures = BTreeMap<String, f64>;

/// The result of a check.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    /// A sentence.
    pub(super) note: String,
    pub(super) figures: Figures,
    /// Figures that the table shows too, in order.
    pub(super) columns: Vec<(String, f64)>,
}

impl Finding {
    pub(super) fn passed(note: impl Into<String>) -> Self {
        Self::new(Verdict::Passed, note)
    }

    pub(super) fn failed(note: impl Into<String>) -> Self {
        Self::new(Verdict::Failed, note)
    }

    pub(super) fn skipped(note: impl Into<String>) -> Self {
        Self::new(Verdict::Skipped, note)
    }

    /// Creates a finding that passes if `met` is true.
    pub(super) fn judged(met: bool, note: impl Into<String>) -> Self {
        Self::new(Verdict::of(met), note)
    }

    /// Adds a figure.
    pub(super) fn with(mut self, name: impl Into<String>, value: f64) -> Self {
        self.figures.insert(name.into(), value);
        self
    }

    /// Adds a figure that the table shows too.
    pub(super) fn with_column(mut self, name: impl Into<String>, value: f64) -> Self {
        self.columns.push((name.into(), value));
        self
    }

    fn new(verdict: Verdict, note: impl Into<String>) -> Self {
        Self { verdict, note: note.into(), figures: Figures::new(), columns: Vec::new() }
    }
}
