//! Scripts of `dtrain batch slurm` on a real Slurm of two nodes, which are network namespaces of this machine.
//! `cargo xtask soak --slurm` runs the long test.

mod array;
mod lost;
mod plan;
mod tasks;
mod training;

use std::collections::BTreeMap;
use std::time::Instant;

use dtrain_test_kit::faults::{Fault, Kind, Moment};
use dtrain_test_kit::process::repeats;
use dtrain_test_kit::slurm::Slurm;
use dtrain_test_kit::thorough;

use plan::interruptions;
use training::{Outcome, Reference, train};

/// Seed of the first run; each further one has the next.
const SEED: &str = "DTRAIN_SOAK_SEED";

#[derive(Default)]
struct Totals {
    runs: usize,
    failed: Vec<String>,
    interruptions: usize,
    /// By kind: interruptions, and the steps that were repeated after each.
    kinds: BTreeMap<Kind, Vec<u64>>,
}

#[test]
fn a_preempted_training_resumes_to_the_weights_of_an_uninterrupted_one() {
    let Ok(slurm) = Slurm::new(2) else { return };
    // `batch` has a signal that starts the job again, by LSF.
    let expected = thorough::cases(&[Kind::Preemption, Kind::Signal], 1);
    // Training continues while Slurm interrupts it.
    let reference = Reference::train(&slurm, 20 * (1 + expected.len() as u64));
    let mut faults = expected.iter().map(|kind| Fault::new(*kind, Moment::Steps(3)));
    // Without a time limit that a busy machine reaches: it would be a third interruption.
    let outcome = train(&slurm, ("interrupted", "30 min"), &reference, &mut faults);
    assert_eq!(outcome.problems, [""; 0], "{}", slurm.log());
    let kinds: Vec<Kind> = outcome.interruptions.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, expected);
}

#[test]
#[ignore = "takes half an hour; `cargo xtask soak --slurm` runs it"]
fn interruptions_by_slurm_change_no_weight() {
    let wanted = repeats(100);
    let first: u64 = std::env::var(SEED).map_or(1, |seed| seed.parse().unwrap());
    let begun = Instant::now();
    let Ok(slurm) = Slurm::new(2) else { return };
    let mut totals = Totals::default();
    eprintln!("an array of four runs");
    let arrays = array::compare_with_direct_runs(&slurm);
    totals.failed.extend(arrays.into_iter().map(|problem| format!("the array: {problem}")));
    let reference = Reference::train(&slurm, 320);
    eprintln!("uninterrupted run: {:.0} s", reference.took.as_secs_f64());
    for (what, lose) in
        [("daemon of a node", lost::kill_daemon as fn(&_, &_) -> _), ("node", lost::kill_node)]
    {
        eprintln!("a run with a killed {what}");
        let Outcome { problems, .. } = lose(&slurm, &reference);
        totals.failed.extend(problems.into_iter().map(|problem| format!("the killed {what}: {problem}")));
    }
    for seed in first.. {
        if totals.interruptions >= wanted {
            break;
        }
        eprintln!("seed {seed}");
        let mut plan = interruptions(seed).take(wanted - totals.interruptions);
        totals.add(seed, train(&slurm, (&format!("run-{seed}"), "1 min"), &reference, &mut plan));
        eprintln!(
            "{} of {wanted} interruptions in {:.0} s\n",
            totals.interruptions,
            begun.elapsed().as_secs_f64()
        );
    }
    totals.print(begun);
    assert!(totals.failed.is_empty(), "{}", totals.failed.join("\n"));
}

impl Totals {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.runs += 1;
        self.interruptions += outcome.interruptions.len();
        for (kind, repeated) in outcome.interruptions {
            self.kinds.entry(kind).or_default().push(repeated);
        }
        let failed = outcome.problems.into_iter().map(|problem| format!("seed {seed}: {problem}"));
        failed.for_each(|problem| {
            eprintln!("FAILED: {problem}");
            self.failed.push(problem);
        });
    }

    fn print(&self, begun: Instant) {
        eprintln!("| Interruption | Number | Steps repeated, mean | most |\n|---|---|---|---|");
        for (kind, repeated) in &self.kinds {
            let mean = repeated.iter().sum::<u64>() as f64 / repeated.len() as f64;
            let most = repeated.iter().max().unwrap_or(&0);
            eprintln!("| {kind} | {} | {mean:.1} | {most} |", repeated.len());
        }
        let (failed, runs, minutes) = (self.failed.len(), self.runs, begun.elapsed().as_secs_f64() / 60.0);
        eprintln!(
            "\n{} interruptions of {runs} runs; {failed} problems; {minutes:.0} min",
            self.interruptions
        );
    }
}
