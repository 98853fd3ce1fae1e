//! What the suite found: a table for people, and the same as JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// What a check has measured, by name; a unit is the end of the name, as in `step_ms`.
pub(super) type Figures = BTreeMap<String, f64>;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    /// It holds.
    Passed,
    /// It does not, or a goal was missed.
    Failed,
    /// It could not be looked at here.
    Skipped,
}

impl Outcome {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Passed => "pass",
            Self::Failed => "FAIL",
            Self::Skipped => "skip",
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Finding {
    pub(super) outcome: Outcome,
    /// A sentence.
    pub(super) note: String,
    pub(super) figures: Figures,
}

impl Finding {
    pub(super) fn passed(note: impl Into<String>) -> Self {
        Self::new(Outcome::Passed, note)
    }

    pub(super) fn failed(note: impl Into<String>) -> Self {
        Self::new(Outcome::Failed, note)
    }

    pub(super) fn skipped(note: impl Into<String>) -> Self {
        Self::new(Outcome::Skipped, note)
    }

    /// Passed where `met` holds.
    pub(super) fn judged(met: bool, note: impl Into<String>) -> Self {
        Self::new(if met { Outcome::Passed } else { Outcome::Failed }, note)
    }

    /// With one more figure.
    pub(super) fn with(mut self, name: impl Into<String>, value: f64) -> Self {
        self.figures.insert(name.into(), value);
        self
    }

    fn new(outcome: Outcome, note: impl Into<String>) -> Self {
        Self {
            outcome,
            note: note.into(),
            figures: Figures::new(),
        }
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) part: &'static str,
    pub(super) check: String,
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
    pub(super) note: String,
    pub(super) figures: Figures,
    /// The commands that it ran, in the order of their start.
    pub(super) commands: Vec<String>,
}

/// All of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Raised when a field changes its meaning.
    pub(super) format: u32,
    pub(super) command: String,
    /// The date, the GPUs, the driver and the versions.
    pub(super) machine: serde_json::Value,
    pub(super) rows: Vec<Row>,
}

impl Report {
    pub(super) fn count(&self, outcome: Outcome) -> usize {
        self.rows.iter().filter(|row| row.outcome == outcome).count()
    }
}

/// A table in Markdown.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| Part | Check | | Time | Found |\n|---|---|---|---|---|")?;
        for row in &self.rows {
            let note = row.note.replace('|', "\\|").replace('\n', " ");
            let (part, check, word, seconds) = (row.part, &row.check, row.outcome.word(), row.seconds);
            writeln!(f, "| {part} | {check} | {word} | {seconds:.1} s | {note} |")?;
        }
        let [passed, failed, skipped] =
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(|outcome| self.count(outcome));
        writeln!(f, "\n{passed} passed, {failed} failed, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_was_found_and_how_many() {
        let row = |outcome, note: &str| Row {
            part: "nccl",
            check: "one rank".to_owned(),
            outcome,
            seconds: 1.25,
            note: note.to_owned(),
            figures: Figures::new(),
            commands: Vec::new(),
        };
        let report = Report {
            format: 1,
            command: String::new(),
            machine: serde_json::Value::Null,
            rows: vec![
                row(Outcome::Passed, "well"),
                row(Outcome::Failed, "a | b\nc"),
                row(Outcome::Skipped, "no"),
            ],
        };
        let text = report.to_string();
        assert!(
            text.contains("| nccl | one rank | pass | 1.2 s | well |"),
            "{text}"
        );
        assert!(text.contains("FAIL") && text.contains("a \\| b c"), "{text}");
        assert!(text.ends_with("1 passed, 1 failed, 1 skipped\n"), "{text}");
    }

    #[test]
    fn a_missed_goal_is_a_failure() {
        let finding = Finding::judged(false, "too slow").with("ratio", 0.5);
        assert_eq!(finding.outcome, Outcome::Failed);
        assert_eq!(finding.figures["ratio"], 0.5);
        assert_eq!(Finding::judged(true, "").outcome, Outcome::Passed);
    }
}
