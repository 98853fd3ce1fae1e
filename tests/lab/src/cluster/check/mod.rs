//! A model check: three nodes, every order of events and up to two faults, in steps of time.
//!
//! The search visits each state once. A state in which an invariant does not hold is reported with the steps that led
//! to it.

mod faults;
mod model;
mod node;
mod steps;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use model::{Model, Planted};
use steps::Step;

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    pub(super) faults: u8,
    /// Faults happen before this time.
    pub(super) fault_ticks: u32,
    pub(super) least: usize,
    pub(super) max_restarts: u32,
    pub(super) states: usize,
}

#[derive(Debug, Default)]
struct Searched {
    pub(super) states: usize,
    pub(super) steps: u64,
    pub(super) finals: u64,
    /// Whether the limit of states ended the search.
    pub(super) is_cut: bool,
    pub(super) violation: Option<(String, Vec<Step>)>,
}

/// The most steps to a state: with more, the same time never ends.
const DEEPEST: usize = 5000;

/// Visits all states, deep first: the stack is the path to the current state.
fn search(bounds: &Bounds, planted: Planted) -> Searched {
    let mut searched = Searched::default();
    let mut seen = HashSet::new();
    let first = Model::new(bounds, planted);
    seen.insert(first.fingerprint());
    let steps = first.steps();
    let mut stack = vec![(first, steps, None)];
    while let Some((model, steps, _)) = stack.last_mut() {
        let Some(step) = steps.pop() else {
            stack.pop();
            continue;
        };
        let mut next = model.clone();
        searched.steps += 1;
        next.take(step);
        let result = next.check();
        let is_new = result.is_err() || seen.insert(next.fingerprint());
        if !is_new {
            continue;
        }
        let next_steps = next.steps();
        let result = result.and_then(|()| match stack.len() {
            DEEPEST => Err("one time never ends".to_owned()),
            _ if next.is_final() => {
                searched.finals += 1;
                Ok(())
            }
            _ if next_steps.is_empty() => Err("no step is left, and the run is not over".to_owned()),
            _ => Ok(()),
        });
        if let Err(violation) = result {
            let path = stack.iter().filter_map(|(.., step)| *step).chain([step]).collect();
            searched.violation = Some((violation, path));
            break;
        }
        if seen.len() >= bounds.states {
            searched.is_cut = true;
            break;
        }
        stack.push((next, next_steps, Some(step)));
    }
    searched.states = seen.len();
    searched
}

/// Checks runs with and without spare nodes, and that planted faults are found. `states`: the most of each search.
pub(super) fn run(states: usize) -> Result<()> {
    let shapes = [(3, 1, "3 of 3 nodes"), (2, 1, "2 of 3 nodes"), (2, 0, "2 of 3 nodes, no restarts")];
    for faults in [1, 2] {
        for (least, max_restarts, name) in shapes {
            let bounds = Bounds { faults, fault_ticks: 4, least, max_restarts, states };
            let begun = Instant::now();
            let searched = search(&bounds, Planted::Nothing);
            let how = if searched.is_cut { "at least " } else { "" };
            println!(
                "{name}, up to {faults} faults: {how}{} states, {} steps, {} ends in {}",
                searched.states,
                searched.steps,
                searched.finals,
                seconds(begun.elapsed())
            );
            if let Some((violation, path)) = searched.violation {
                let steps: String = path.iter().map(|step| format!("  {step:?}\n")).collect();
                bail!("{violation}\n{steps}");
            }
        }
    }
    for planted in [Planted::LongLease, Planted::FenceWithoutKill, Planted::OldStart] {
        let bounds = Bounds { faults: 2, fault_ticks: 4, least: 2, max_restarts: 1, states };
        let begun = Instant::now();
        let searched = search(&bounds, planted);
        let Some((violation, path)) = searched.violation else { bail!("{planted:?} was not found") };
        println!(
            "planted {planted:?}: found after {} states in {}: {violation}; {} steps",
            searched.states,
            seconds(begun.elapsed()),
            path.len()
        );
    }
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_breaks_no_invariant_and_planted_faults_do() {
        let bounds = Bounds { faults: 1, fault_ticks: 2, least: 2, max_restarts: 1, states: 100_000 };
        let searched = search(&bounds, Planted::Nothing);
        assert!(searched.violation.is_none() && searched.finals > 0, "{searched:?}");
        for planted in [Planted::LongLease, Planted::FenceWithoutKill, Planted::OldStart] {
            let bounds = Bounds { faults: 2, states: 2_000_000, ..bounds };
            assert!(search(&bounds, planted).violation.is_some(), "{planted:?}");
        }
    }
}
