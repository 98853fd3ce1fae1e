//! Results of a lab command: tables for people, in Markdown, and the same data as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::files::write;
use crate::machine::Machine;
use crate::stats::Spread;

/// The goal of a figure. The bound itself meets the goal; NaN does not.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    pub(crate) fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, ">= {}", format_number(*least)),
            Self::AtMost(most) => write!(f, "<= {}", format_number(*most)),
        }
    }
}

/// The verdict on a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// The check holds, or the goal is met.
    Passed,
    /// The check fails, or the goal is missed.
    Failed,
    /// Impossible to check here.
    Skipped,
}

impl Verdict {
    pub(crate) fn of(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "pass",
            Self::Failed => "FAIL",
            Self::Skipped => "skip",
        }
    }
}

/// One line: a measurement or a check.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// The columns of the table.
    pub(crate) figures: Vec<(String, f64)>,
    /// The unit of the figures.
    pub(crate) unit: String,
    pub(crate) goal: Option<Goal>,
    pub(crate) verdict: Option<Verdict>,
    /// A sentence.
    pub(crate) note: String,
    /// Additional figures, only for the JSON; the name ends with the unit, as in `step_ms`.
    pub(crate) details: BTreeMap<String, f64>,
    /// The value of each round, in order.
    pub(crate) rounds: Vec<f64>,
    /// Its commands, in the order of their start.
    pub(crate) commands: Vec<String>,
}

impl Row {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds a column.
    pub(crate) fn with(mut self, column: &str, value: f64) -> Self {
        self.figures.push((column.to_owned(), value));
        self
    }

    /// Adds the columns of a repeated measurement in this unit; the goal applies to the median.
    pub(crate) fn with_spread(mut self, spread: &Spread, unit: &str, goal: Option<Goal>) -> Self {
        self.unit = unit.to_owned();
        self.rounds.clone_from(&spread.rounds);
        self.with("median", spread.median)
            .with("lowest", spread.lowest)
            .with("highest", spread.highest)
            .with_goal(spread.median, goal)
    }

    /// Adds a goal for this value.
    pub(crate) fn with_goal(mut self, value: f64, goal: Option<Goal>) -> Self {
        self.goal = goal;
        self.verdict = goal.map(|goal| Verdict::of(goal.is_met(value)));
        self
    }

    pub(crate) fn with_verdict(mut self, verdict: Verdict, note: impl Into<String>) -> Self {
        self.verdict = Some(verdict);
        self.note = note.into();
        self
    }
}

/// Rows under one heading.
#[derive(Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) rows: Vec<Row>,
    /// Notes below the table.
    pub(crate) notes: Vec<String>,
}

impl Group {
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), rows: Vec::new(), notes: Vec::new() }
    }
}

/// All results of a command.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Raised when a field changes its meaning.
    format: u32,
    /// The command as a user types it, without paths.
    command: String,
    machine: Machine,
    pub(crate) groups: Vec<Group>,
}

impl Report {
    pub(crate) fn new(command: String, machine: Machine) -> Self {
        Self { format: 2, command, machine, groups: Vec::new() }
    }

    /// Adds a row to the group of this title, in place of an earlier row of the same name.
    pub(crate) fn add(&mut self, title: &str, row: Row) {
        let at = self.groups.iter().position(|group| group.title == title).unwrap_or_else(|| {
            self.groups.push(Group::new(title));
            self.groups.len() - 1
        });
        let rows = &mut self.groups[at].rows;
        match rows.iter_mut().find(|earlier| earlier.name == row.name) {
            Some(earlier) => *earlier = row,
            None => rows.push(row),
        }
    }

    fn count(&self, verdict: Verdict) -> usize {
        let rows = self.groups.iter().flat_map(|group| &group.rows);
        rows.filter(|row| row.verdict == Some(verdict)).count()
    }

    /// Prints the tables, and writes them beside the JSON file `out`. Returns the exit code: 1 if a row has failed.
    pub(crate) fn publish(&self, out: &Path) -> Result<u8> {
        print!("{self}");
        self.write(out)?;
        eprintln!("all figures: {}", out.display());
        Ok(u8::from(self.count(Verdict::Failed) > 0))
    }

    /// Writes the JSON file `out`, and the tables beside it.
    pub(crate) fn write(&self, out: &Path) -> Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        write(out, json)?;
        write(&out.with_extension("md"), self.to_string())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n", self.command)?;
        for group in &self.groups {
            writeln!(f, "{}\n", group.title)?;
            write_table(f, &group.rows)?;
            for note in &group.notes {
                writeln!(f, "\n{note}")?;
            }
            writeln!(f)?;
        }
        let [passed, failed, skipped] =
            [Verdict::Passed, Verdict::Failed, Verdict::Skipped].map(|verdict| self.count(verdict));
        writeln!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

fn write_table(f: &mut fmt::Formatter<'_>, rows: &[Row]) -> fmt::Result {
    let mut columns: Vec<&str> = Vec::new();
    for (column, _) in rows.iter().flat_map(|row| &row.figures) {
        if !columns.contains(&column.as_str()) {
            columns.push(column);
        }
    }
    let has = |of: fn(&Row) -> bool| rows.iter().any(of);
    let (goals, verdicts, notes) =
        (has(|row| row.goal.is_some()), has(|row| row.verdict.is_some()), has(|row| !row.note.is_empty()));
    let units = has(|row| !row.unit.is_empty());
    let mut lines: Vec<Vec<String>> = vec![Vec::new(), Vec::new()];
    let mut head = |name: &str| {
        lines[0].push(name.to_owned());
        lines[1].push("---".to_owned());
    };
    head("");
    columns.iter().for_each(|column| head(column));
    for (wanted, name) in [(units, "unit"), (goals, "goal"), (verdicts, ""), (notes, "result")] {
        if wanted {
            head(name);
        }
    }
    for row in rows {
        let figure = |column: &&str| {
            let found = row.figures.iter().find(|(name, _)| name == column);
            found.map_or_else(|| "-".to_owned(), |(_, value)| format_number(*value))
        };
        let mut line = vec![row.name.clone()];
        line.extend(columns.iter().map(figure));
        let goal = row.goal.map(|goal| goal.to_string()).unwrap_or_default();
        let verdict = row.verdict.map_or("", Verdict::as_str).to_owned();
        let tail = [(units, row.unit.clone()), (goals, goal), (verdicts, verdict), (notes, row.note.clone())];
        line.extend(tail.into_iter().filter(|(wanted, _)| *wanted).map(|(_, text)| text));
        lines.push(line);
    }
    for line in &mut lines {
        for cell in line {
            *cell = cell.replace('|', "\\|").replace('\n', " ");
        }
    }
    // The last column, which has sentences, needs no padding.
    let padded = lines[0].len() - usize::from(notes);
    let widths: Vec<usize> =
        (0..padded).map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0)).collect();
    for line in &lines {
        write!(f, "|")?;
        for (at, cell) in line.iter().enumerate() {
            write!(f, " {cell:0$} |", widths.get(at).copied().unwrap_or(0))?;
        }
        writeln!(f)?;
    }
    Ok(())
}

/// Formats a value with four significant digits; whole numbers with all digits.
pub(crate) fn format_number(value: f64) -> String {
    if !value.is_finite() || value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value}");
    }
    if value.abs() < 1e-3 {
        return format!("{value:.1e}");
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    format!("{value:.0$}", usize::try_from(digits).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_include_their_bound() {
        assert!(Goal::AtLeast(1.2).is_met(1.2) && !Goal::AtLeast(1.2).is_met(1.19));
        assert!(Goal::AtMost(0.7).is_met(0.7) && !Goal::AtMost(0.7).is_met(0.71));
        assert!(!Goal::AtLeast(1.2).is_met(f64::NAN) && !Goal::AtMost(0.7).is_met(f64::NAN));
    }

    #[test]
    fn numbers_have_four_significant_digits() {
        let all = [0.0, 7.0, 123_456.0, 1.28, 12.8, 1234.5, 0.0625, 1.5e-8, f64::NAN].map(format_number);
        let expected = ["0", "7", "123456", "1.280", "12.80", "1234", "0.06250", "1.5e-8", "NaN"];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_table_shows_medians_goals_and_missing_measurements() {
        let spread = |rounds: &[f64]| Spread::of(rounds.to_vec()).expect("rounds");
        let mut report = Report::new("cargo xtask bench".to_owned(), Machine::default());
        let mut group = Group::new("speed");
        let fast = Row::new("dtrain").with_spread(
            &spread(&[128.0, 130.0, 64.5]),
            "images/s",
            Some(Goal::AtLeast(120.0)),
        );
        let slow = Row::new("DDP").with_spread(&spread(&[100.0]), "images/s", Some(Goal::AtLeast(120.0)));
        group.rows.extend([fast, slow, Row::new("a | b").with_verdict(Verdict::Skipped, "not\nhere")]);
        report.groups.push(group);
        let text = report.to_string();
        let line = |words: &str| {
            let found = text.lines().find(|line| line.starts_with(words)).unwrap_or_default();
            found.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("| dtrain"), "| dtrain | 128 | 64.50 | 130 | images/s | >= 120 | pass | |");
        assert!(line("| DDP").ends_with("| >= 120 | FAIL | |"), "{text}");
        assert_eq!(line("| a \\| b"), "| a \\| b | - | - | - | | | skip | not here |");
        assert!(text.ends_with("1 passed, 1 failed, 1 skipped\n"), "{text}");
    }
}
