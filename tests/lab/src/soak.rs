//! `soak`: repeats timing-dependent tests many times. They kill processes, freeze jobs, inspect workers with
//! a slow debugger, and send signals while no worker runs; or trainings on several nodes with random faults, or in
//! jobs of Slurm. Not part of `cargo test`: they take minutes.

use anyhow::Result;

use xtask::process::Signals;
use xtask::setup::{self, SetArgs};
use xtask::workspace::Workspace;

/// The variable with the number of repetitions; the launcher's tests read it.
const REPEATS: &str = "DTRAIN_SOAK";

/// The variable with the seed of the first training, and that of needs whose absence is a failure.
const SEED: &str = "DTRAIN_SOAK_SEED";
const REQUIRE: &str = "DTRAIN_REQUIRE";

/// Parts of the names of these tests.
const CASES: [&str; 5] = ["killed", "frozen", "inspected", "in_the_pause", "stops_at_random_moments"];

/// The arguments of `soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Repetitions of each case, or number of faults [default: 200; with --slurm 100]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeats: Option<u32>,
    /// Run only tests whose names contain this, such as `frozen`
    #[arg(long)]
    case: Option<String>,
    /// Train on several nodes with random faults instead; needs root
    #[arg(long, conflicts_with = "case", group = "jobs")]
    trainings: bool,
    /// Train in jobs of a Slurm of two nodes, and interrupt them; needs root
    #[arg(long, conflicts_with = "case", group = "jobs")]
    slurm: bool,
    /// Seed of the first training
    #[arg(long, default_value_t = 1, requires = "jobs")]
    seed: u64,
}

/// Runs the tests and returns cargo's exit code.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    if args.trainings {
        return run_trainings(workspace, signals, args, "netns", "trainings_with_random_faults");
    }
    if args.slurm {
        return run_trainings(workspace, signals, args, "netns,slurm", "interruptions_by_slurm");
    }
    let mut cargo = workspace.cargo();
    cargo
        .env(REPEATS, args.repeats().to_string())
        .args(["test", "--package", "dtrain", "--test", "launch", "--test", "cluster", "--", "--nocapture"])
        .args(args.case.as_deref().map_or(CASES.to_vec(), |case| vec![case]));
    Ok(signals.run(&mut cargo)?.code)
}

impl Args {
    fn repeats(&self) -> u32 {
        self.repeats.unwrap_or(if self.slurm { 100 } else { 200 })
    }
}

/// Runs a long test of trainings, which fails without these needs, and returns cargo's exit code.
fn run_trainings(
    workspace: &Workspace,
    signals: &Signals,
    args: &Args,
    needs: &str,
    test: &str,
) -> Result<u8> {
    let ready = setup::run(workspace, signals, &SetArgs::default().into())?;
    let code = ready.build_dtrain(workspace, signals, "dev")?;
    if code != 0 {
        return Ok(code);
    }
    let mut cargo = ready.cargo(workspace);
    cargo
        .env(REPEATS, args.repeats().to_string())
        .env(SEED, args.seed.to_string())
        .env(REQUIRE, needs)
        .args(["test", "--package", "dtrain-tests", "--test", "e2e", "--"])
        .args(["--ignored", "--nocapture", test]);
    Ok(signals.run(&mut cargo)?.code)
}
