//! What all cases together say.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

use super::case::{NEAR, Outcome};
use super::plan::{Kind, Plan, Resume};

/// The outcomes by what was killed and by the number of ranks.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<(Kind, usize), Row>,
    /// Milliseconds from the kill to the first step after a restart.
    restarts: Vec<f64>,
    /// Milliseconds from the second command to its first step.
    again: Vec<f64>,
    whole: usize,
    /// Kills of runs that had begun to go back, and those in the middle of it.
    back: usize,
    inside_back: usize,
}

#[derive(Debug, Default)]
struct Row {
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
        let row = self.rows.entry((plan.kind, plan.ranks)).or_default();
        row.cases += 1;
        row.missed += usize::from(!outcome.missed.is_empty());
        row.inside += usize::from(outcome.inside);
        row.equal += usize::from(outcome.equal == Some(true));
        row.same_ranks += usize::from(outcome.equal.is_some());
        row.other_ranks += usize::from(outcome.difference.is_some());
        row.difference = row.difference.max(outcome.difference.unwrap_or(0.0));
        row.damaged += outcome.damaged.len();
        row.lost.push(outcome.lost as f64);
        self.whole += outcome.whole;
        self.back += usize::from(outcome.back);
        self.inside_back += usize::from(outcome.inside_back);
        let times = match plan.resume {
            Resume::Restart => &mut self.restarts,
            Resume::Again | Resume::Ranks(_) => &mut self.again,
        };
        times.extend(outcome.to_step.as_ref().map(milliseconds));
    }

    /// Cases in which something was not as it must be.
    pub(super) fn missed(&self) -> usize {
        self.rows.values().map(|row| row.missed).sum()
    }

    /// A line of progress.
    pub(super) fn progress(&self) -> String {
        let sum = |of: &dyn Fn(&Row) -> usize| -> usize { self.rows.values().map(of).sum() };
        format!(
            "{} kills, {} inside a write: {} of {} equal, {} with other ranks within {:.1e}, {} damaged, {} missed",
            sum(&|row| row.cases),
            sum(&|row| row.inside),
            sum(&|row| row.equal),
            sum(&|row| row.same_ranks),
            sum(&|row| row.other_ranks),
            self.rows.values().map(|row| row.difference).fold(0.0, f64::max),
            sum(&|row| row.damaged),
            self.missed(),
        )
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| Killed | Ranks | Cases | While a checkpoint was written | Equal to the bit | Resumed on other ranks: largest \
             difference | Damaged checkpoints | Steps lost: median, most | Missed |\n|---|---|---|---|---|---|---|---|---|"
        )?;
        for ((kind, ranks), row) in &self.rows {
            let [median, _, most] = spread(&row.lost);
            let others = match row.other_ranks {
                0 => "none".to_owned(),
                others => format!("{others}: {:.1e}", row.difference),
            };
            writeln!(
                f,
                "| {kind} | {ranks} | {} | {} | {} of {} | {others} | {} | {median:.0}, {most:.0} | {} |",
                row.cases, row.inside, row.equal, row.same_ranks, row.damaged, row.missed,
            )?;
        }
        writeln!(f, "\n{}", self.progress())?;
        writeln!(
            f,
            "checkpoints verified: {}; weights after a resume on other ranks must be within {NEAR:e}",
            self.whole
        )?;
        writeln!(
            f,
            "runs that went back to an earlier checkpoint and were killed again: {}, in the middle of it: {}",
            self.back, self.inside_back
        )?;
        for (times, what) in [
            (
                &self.restarts,
                "from the kill to the first step, where the launcher restarts",
            ),
            (&self.again, "from the second command to its first step"),
        ] {
            if !times.is_empty() {
                let [median, least, most] = spread(times);
                writeln!(
                    f,
                    "{what}: {median:.0} ms ({least:.0} to {most:.0}), of {}",
                    times.len()
                )?;
            }
        }
        Ok(())
    }
}

fn milliseconds(time: &Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

/// The middle, the least and the greatest; zeros where there is none.
fn spread(values: &[f64]) -> [f64; 3] {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    [at(sorted.len() / 2), at(0), at(sorted.len().saturating_sub(1))]
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    #[test]
    fn cases_are_counted_by_what_was_killed_and_by_ranks() {
        let mut random = Random::new(1);
        let mut table = Table::default();
        for number in 0..18 {
            let plan = Plan::draw(number, false, &mut random);
            let same = plan.last_ranks() == plan.ranks;
            let outcome = Outcome {
                inside: number % 2 == 0,
                lost: number,
                whole: 2,
                equal: same.then_some(true),
                difference: (!same).then_some(1e-8),
                to_step: Some(Duration::from_millis(100 + number)),
                ..Outcome::default()
            };
            table.add(&plan, &outcome);
        }
        assert_eq!(table.missed(), 0);
        let text = table.to_string();
        assert!(
            text.contains("| one worker | 1 | 2 | 1 | 1 of 1 | 1: 1.0e-8 | 0 | 9, 9 | 0 |"),
            "{text}"
        );
        assert!(
            text.contains("18 kills, 9 inside a write: 15 of 15 equal"),
            "{text}"
        );
        assert!(text.contains("checkpoints verified: 36"), "{text}");

        let plan = Plan::draw(18, false, &mut random);
        let bad = Outcome {
            equal: Some(false),
            damaged: vec!["step 3".to_owned()],
            missed: vec!["step 3".to_owned()],
            ..Outcome::default()
        };
        table.add(&plan, &bad);
        assert_eq!(table.missed(), 1);
        assert!(
            table.progress().ends_with("1 damaged, 1 missed"),
            "{}",
            table.progress()
        );
    }
}
