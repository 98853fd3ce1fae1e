//! What a check found.

use std::collections::BTreeMap;

use crate::report::Verdict;

/// What a check has measured, by name; a unit is the end of the name, as in `step_ms`.
pub(super) type Figures = BTreeMap<String, f64>;

/// What a check found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    /// A sentence.
    pub(super) note: String,
    pub(super) figures: Figures,
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

    /// Passed where `met` holds.
    pub(super) fn judged(met: bool, note: impl Into<String>) -> Self {
        Self::new(Verdict::of(met), note)
    }

    /// With one more figure.
    pub(super) fn with(mut self, name: impl Into<String>, value: f64) -> Self {
        self.figures.insert(name.into(), value);
        self
    }

    fn new(verdict: Verdict, note: impl Into<String>) -> Self {
        Self { verdict, note: note.into(), figures: Figures::new() }
    }
}
