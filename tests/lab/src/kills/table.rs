//! Summarizes all cases.

use std::collections::BTreeMap;
use std::time::Duration;

use super::case::{NEAR, Outcome};
use super::plan::{Kind, Plan, Resume};
use crate::report::{Group, Row, Verdict};
use crate::stats::Spread;

/// The outcomes by victim and number of ranks.
#[derive(Debug, Default)]
pub(super) struct Table {
    cells: BTreeMap<(Kind, usize), Cell>,
    /// Milliseconds from the kill to the first step after a restart.
    restarts: Vec<f64>,
    /// Milliseconds from the second command to its first step.
    again: Vec<f64>,
    whole: usize,
    /// Kills after the start of a rollback, and those during the rollback.
    back: usize,
    inside_back: usize,
}

#[derive(Debug, Default)]
struct Cell {
    cases: usize,
    missed: usize,
    inside: usize,
    equal: usize,
    same_ranks: usize,
    other_ranks: usize,
    difference: f64,
    damaged: usize,
    lost: Vec<f64>,
}

impl Table {
    pub(super) fn add(&mut self, plan: &Plan, outcome: &Outcome) {
        let cell = self.cells.entry((plan.kind, plan.ranks)).or_default();
        cell.cases += 1;
        cell.missed += usize::from(!outcome.missed.is_empty());
        cell.inside += usize::from(outcome.inside);
        cell.equal += usize::from(outcome.equal == Some(true));
        cell.same_ranks += usize::from(outcome.equal.is_some());
        cell.other_ranks += usize::from(outcome.difference.is_some());
        cell.difference = cell.difference.max(outcome.difference.unwrap_or(0.0));
        cell.damaged += outcome.damaged.len();
        cell.lost.push(outcome.lost as f64);
        self.whole += outcome.whole;
        self.back += usize::from(outcome.back);
        self.inside_back += usize::from(outcome.inside_back);
        let times = match plan.resume {
            Resume::Restart => &mut self.restarts,
            Resume::Again | Resume::Ranks(_) => &mut self.again,
        };
        times.extend(outcome.to_step.as_ref().map(milliseconds));
    }

    /// Returns the number of failed cases.
    pub(super) fn missed(&self) -> usize {
        self.cells.values().map(|cell| cell.missed).sum()
    }

    /// Returns a line of progress.
    pub(super) fn progress(&self) -> String {
        let sum = |of: &dyn Fn(&Cell) -> usize| -> usize { self.cells.values().map(of).sum() };
        format!(
            "{} kills, {} inside a write: {} of {} equal, {} with other ranks within {:.1e}, {} damaged, {} missed",
            sum(&|cell| cell.cases),
            sum(&|cell| cell.inside),
            sum(&|cell| cell.equal),
            sum(&|cell| cell.same_ranks),
            sum(&|cell| cell.other_ranks),
            self.cells.values().map(|cell| cell.difference).fold(0.0, f64::max),
            sum(&|cell| cell.damaged),
            self.missed(),
        )
    }

    /// Returns the whole table.
    pub(super) fn groups(&self) -> Vec<Group> {
        let mut group = Group::new("kills, by what was killed and by ranks");
        for ((kind, ranks), cell) in &self.cells {
            let lost = Spread::of(cell.lost.clone());
            let [median, most] = lost.map_or([0.0; 2], |lost| [lost.median, lost.highest]);
            let mut row = Row::new(format!("{kind}, {ranks} ranks"));
            for (column, count) in [
                ("cases", cell.cases),
                ("while a checkpoint was written", cell.inside),
                ("equal to the bit", cell.equal),
                ("of", cell.same_ranks),
                ("on other ranks", cell.other_ranks),
                ("damaged", cell.damaged),
                ("missed", cell.missed),
            ] {
                row = row.with(column, count as f64);
            }
            row = row
                .with("largest difference", cell.difference)
                .with("steps lost, median", median)
                .with("most", most);
            row.verdict = Some(Verdict::of(cell.missed == 0));
            group.rows.push(row);
        }
        let mut times_to_step = Group::new("times");
        for (times, words) in [
            (&self.restarts, "from the kill to the first step, where the launcher restarts"),
            (&self.again, "from the second command to its first step"),
        ] {
            if let Some(spread) = Spread::of(times.clone()) {
                times_to_step
                    .rows
                    .push(Row::new(words).measured(&spread, "ms", None).with("cases", times.len() as f64));
            }
        }
        group.notes = vec![
            self.progress(),
            format!(
                "checkpoints verified: {}; weights after a resume on other ranks must be within {NEAR:e}",
                self.whole
            ),
            format!(
                "runs that went back to an earlier checkpoint and were killed again: {}, in the middle of it: {}",
                self.back, self.inside_back
            ),
        ];
        vec![group, times_to_step]
    }
}

fn milliseconds(time: &Duration) -> f64 {
    1e3 * time.as_secs_f64()
}
