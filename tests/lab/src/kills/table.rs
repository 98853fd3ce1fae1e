//! Summarizes all cases.

use std::collections::BTreeMap;

use dtrain_test_kit::faults::{Kind, Target};

use super::case::{Outcome, TOLERANCE};
use super::plan::{Plan, Resume};
use crate::report::{Group, Row, Verdict};
use crate::stats::Spread;

/// The outcomes by victim and number of ranks.
#[derive(Debug, Default)]
pub(super) struct Table {
    cells: BTreeMap<(Target, usize), Cell>,
    /// Milliseconds from the kill to the first step after a restart.
    restarts: Vec<f64>,
    /// Milliseconds from the second command to its first step.
    again: Vec<f64>,
    intact: usize,
    /// Kills after the start of a rollback, and those during the rollback.
    rolled_back: usize,
    during_rollback: usize,
}

#[derive(Debug, Default)]
struct Cell {
    cases: usize,
    failures: usize,
    during_write: usize,
    same_bytes: usize,
    same_ranks: usize,
    other_ranks: usize,
    difference: f64,
    damaged: usize,
    repeated_steps: Vec<f64>,
}

impl Table {
    pub(super) fn add(&mut self, plan: &Plan, outcome: &Outcome) {
        let Kind::Kill(target) = plan.fault.kind else { return };
        let cell = self.cells.entry((target, plan.ranks)).or_default();
        cell.cases += 1;
        cell.failures += usize::from(!outcome.failures.is_empty());
        cell.during_write += usize::from(outcome.during_write);
        cell.same_bytes += usize::from(outcome.same_bytes == Some(true));
        cell.same_ranks += usize::from(outcome.same_bytes.is_some());
        cell.other_ranks += usize::from(outcome.difference.is_some());
        cell.difference = cell.difference.max(outcome.difference.unwrap_or(0.0));
        cell.damaged += outcome.damaged.len();
        cell.repeated_steps.push(outcome.repeated_steps as f64);
        self.intact += outcome.intact;
        self.rolled_back += usize::from(outcome.rolled_back);
        self.during_rollback += usize::from(outcome.during_rollback);
        let times = match plan.resume {
            Resume::Restart => &mut self.restarts,
            Resume::Again | Resume::Ranks(_) => &mut self.again,
        };
        times.extend(outcome.to_step.map(|time| 1e3 * time.as_secs_f64()));
    }

    /// Returns the number of failed cases.
    pub(super) fn failures(&self) -> usize {
        self.cells.values().map(|cell| cell.failures).sum()
    }

    /// Returns a line of progress.
    pub(super) fn progress(&self) -> String {
        let sum = |of: &dyn Fn(&Cell) -> usize| -> usize { self.cells.values().map(of).sum() };
        format!(
            "{} kills, {} during a write: {} of {} bit-equal, {} on other ranks within {:.1e}, {} damaged, {} failed",
            sum(&|cell| cell.cases),
            sum(&|cell| cell.during_write),
            sum(&|cell| cell.same_bytes),
            sum(&|cell| cell.same_ranks),
            sum(&|cell| cell.other_ranks),
            self.cells.values().map(|cell| cell.difference).fold(0.0, f64::max),
            sum(&|cell| cell.damaged),
            self.failures(),
        )
    }

    /// Returns the whole table.
    pub(super) fn groups(&self) -> Vec<Group> {
        let mut group = Group::new("kills by target and ranks");
        for ((target, ranks), cell) in &self.cells {
            let repeated = Spread::of(cell.repeated_steps.clone());
            let [median, most] = repeated.map_or([0.0; 2], |repeated| [repeated.median, repeated.highest]);
            let mut row = Row::new(format!("{target}, {ranks} ranks"));
            for (column, count) in [
                ("cases", cell.cases),
                ("during a write", cell.during_write),
                ("bit-equal", cell.same_bytes),
                ("on the same ranks", cell.same_ranks),
                ("on other ranks", cell.other_ranks),
                ("damaged", cell.damaged),
                ("failed", cell.failures),
            ] {
                row = row.with(column, count as f64);
            }
            row = row
                .with("largest difference", cell.difference)
                .with("repeated steps, median", median)
                .with("most", most);
            row.verdict = Some(Verdict::of(cell.failures == 0));
            group.rows.push(row);
        }
        let mut times_to_step = Group::new("times");
        for (times, title) in [
            (&self.restarts, "from the kill to the first step after a restart"),
            (&self.again, "from the second command to its first step"),
        ] {
            if let Some(spread) = Spread::of(times.clone()) {
                times_to_step
                    .rows
                    .push(Row::new(title).with_spread(&spread, "ms", None).with("cases", times.len() as f64));
            }
        }
        group.notes = vec![
            self.progress(),
            format!(
                "checkpoints verified: {}; weights after a resume on other ranks must be within {TOLERANCE:e}",
                self.intact
            ),
            format!(
                "kills after the start of a rollback: {}, during the rollback: {}",
                self.rolled_back, self.during_rollback
            ),
        ];
        vec![group, times_to_step]
    }
}
