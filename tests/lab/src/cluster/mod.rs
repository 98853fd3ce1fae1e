//! `cluster`: simulates runs on several nodes, with faults at random moments.

mod actions;
mod check;
mod faults;
mod node;
mod step;
mod workers;
mod world;

use std::time::{Duration, Instant};

use anyhow::Result;

use world::{Outcomes, Setup, World};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of simulated runs
    #[arg(long, default_value_t = 1000)]
    runs: u64,
    /// Most nodes of a run
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..=1000))]
    nodes: u64,
    /// Seed of the first run; the others follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Check every order of events of three nodes instead
    #[arg(long)]
    check: bool,
    /// Most states of each search of the check; 1 million take about 100 MB
    #[arg(long, default_value_t = 20_000_000)]
    states: usize,
}

/// Simulates the runs, and returns the exit code.
pub(crate) fn run(args: &Args) -> Result<u8> {
    if args.check {
        check::run(args.states)?;
        return Ok(0);
    }
    let begun = Instant::now();
    let mut sum = Outcomes::default();
    for seed in args.seed..args.seed + args.runs {
        let outcomes = simulate(args.nodes, seed);
        sum.epochs += outcomes.epochs;
        sum.messages += outcomes.messages;
        sum.leader_lost += outcomes.leader_lost;
    }
    println!(
        "{} runs with up to {} nodes: {} epochs, {} messages, {} nodes without their leader, in {:.1} s",
        args.runs,
        args.nodes,
        sum.epochs,
        sum.messages,
        sum.leader_lost,
        begun.elapsed().as_secs_f64()
    );
    let mut times: Vec<Duration> = (args.seed..args.seed + 20).filter_map(join_time).collect();
    times.sort_unstable();
    if let [fastest, .., slowest] = times[..] {
        let median = times[times.len() / 2].as_secs_f64();
        println!(
            "1000 nodes: all started after {median:.3} s ({:.3} to {:.3}) of simulated time",
            fastest.as_secs_f64(),
            slowest.as_secs_f64()
        );
    }
    Ok(0)
}

fn simulate(most: u64, seed: u64) -> Outcomes {
    let nodes = 2 + (seed % (most - 1)) as usize;
    let least = if seed.is_multiple_of(3) { nodes } else { nodes.div_ceil(2) };
    let work = Duration::from_millis(1000 + seed * 37 % 20_000);
    let setup = Setup {
        nodes,
        least,
        max_restarts: (seed % 7) as u32,
        work,
        faults: (seed % 11) as usize,
        spare: if seed % 5 == 4 { 2 } else { 0 },
        has_node_ranks: seed % 8 == 7,
        is_late: least < nodes && seed.is_multiple_of(2),
        may_leave: seed % 4 == 1,
        slow_one_in: 50,
        fails_one_in: if seed % 6 == 5 { 20 } else { 0 },
    };
    let mut world = World::new(setup, seed);
    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    if let Err(panic) = end {
        eprintln!("the run of seed {seed} with up to {most} nodes broke a rule");
        std::panic::resume_unwind(panic);
    }
    world.outcomes
}

/// Returns the time until the workers of 1,000 nodes are started, of which one message in 1,000 is slow.
fn join_time(seed: u64) -> Option<Duration> {
    let setup = Setup {
        nodes: 1000,
        least: 1000,
        work: Duration::from_secs(1),
        slow_one_in: 1000,
        ..Setup::default()
    };
    let mut world = World::new(setup, seed);
    world.run();
    world.outcomes.started_after
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_simulated_run_ends_alike_on_all_nodes_and_epochs_never_overlap() {
        for seed in 0..300 {
            super::simulate(6, seed);
        }
    }
}
