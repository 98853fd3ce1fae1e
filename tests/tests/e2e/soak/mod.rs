//! Trainings on several nodes with random faults, against undisturbed ones. Nodes are network namespaces of this
//! machine; a batch system starts agents again. `cargo xtask soak --trainings` runs it.

mod cluster;
mod inject;
mod plan;
mod training;
mod watch;

use std::collections::BTreeMap;
use std::time::Instant;

use dtrain_test_kit::process::repeats;

use plan::Plan;
use training::{References, disturb};

/// Seed of the first training; each further one has the next.
const SEED: &str = "DTRAIN_SOAK_SEED";

#[derive(Default)]
struct Totals {
    trainings: usize,
    /// Agents that were started, and epochs whose workers were started.
    agents: usize,
    epochs: usize,
    /// Reports that name a node.
    reports: usize,
    /// The largest difference of weights on other ranks.
    difference: f64,
    faults: BTreeMap<String, usize>,
    /// Seeds of the trainings that failed.
    failed: Vec<u64>,
}

#[test]
#[ignore = "takes a quarter of an hour; `cargo xtask soak --trainings` runs it"]
fn trainings_with_random_faults_end_in_the_weights_of_undisturbed_ones() {
    let wanted = repeats(200);
    let first: u64 = std::env::var(SEED).map_or(1, |seed| seed.parse().unwrap());
    let Ok(references) = References::train() else { return };
    eprintln!("difference of undisturbed weights on other ranks: {:e}", references.rounding());
    let mut totals = Totals::default();
    for seed in first.. {
        totals.add(&Plan::new(seed), &references);
        let count: usize = totals.faults.values().sum();
        let Totals { trainings, agents, epochs, .. } = totals;
        eprintln!("{count} of {wanted} faults: {trainings} trainings, {agents} agents, {epochs} starts\n");
        if count >= wanted {
            break;
        }
    }
    for (kind, count) in &totals.faults {
        eprintln!("| {kind} | {count} |");
    }
    let Totals { reports, difference, .. } = totals;
    eprintln!("{reports} reports; difference of weights on other ranks: {difference:e}");
    assert!(totals.failed.is_empty(), "the trainings of these seeds failed: {:?}", totals.failed);
}

impl Totals {
    fn add(&mut self, plan: &Plan, references: &References) {
        eprintln!("{plan}");
        let begun = Instant::now();
        let outcome = disturb(plan, references);
        for fault in &outcome.faults {
            *self.faults.entry(fault.kind.to_string()).or_default() += 1;
        }
        self.trainings += 1;
        self.agents += outcome.codes.iter().map(Vec::len).sum::<usize>();
        self.epochs += outcome.epochs;
        self.reports += outcome.reports;
        self.difference = self.difference.max(outcome.difference.unwrap_or(0.0));
        let codes: Vec<_> = outcome.codes.iter().map(|codes| codes.join(" ")).collect();
        eprintln!("  {:.1} s, exit codes by node: {}", begun.elapsed().as_secs_f64(), codes.join(", "));
        for problem in &outcome.problems {
            eprintln!("  FAILED: {problem}");
        }
        if !outcome.problems.is_empty() {
            self.failed.push(plan.seed);
        }
    }
}
