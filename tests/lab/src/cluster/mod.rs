//! `cluster`: simulates runs on several nodes, with faults at random moments.

mod check;
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
    let whole = Setup { nodes: 1000, least: 1000, max_restarts: 0, work: Duration::from_secs(1), faults: 0 };
    let mut world = World::new(whole, args.seed);
    world.run();
    if let Some(after) = world.outcomes.started_after {
        println!("1000 nodes: all started after {:.3} s of simulated time", after.as_secs_f64());
    }
    Ok(0)
}

fn simulate(most: u64, seed: u64) -> Outcomes {
    let nodes = 2 + (seed % (most - 1)) as usize;
    let least = if seed.is_multiple_of(3) { nodes } else { nodes.div_ceil(2) };
    let work = Duration::from_millis(1000 + seed * 37 % 20_000);
    let setup = Setup { nodes, least, max_restarts: (seed % 7) as u32, work, faults: (seed % 11) as usize };
    let mut world = World::new(setup, seed);
    world.run();
    world.outcomes
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
