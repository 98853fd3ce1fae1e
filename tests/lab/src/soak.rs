//! `soak`: repeats timing-dependent tests many times. They kill processes, freeze jobs, inspect workers with
//! a slow debugger, and send signals while no worker runs. Not part of `cargo test`: they take minutes.

use std::process::Command;

use anyhow::Result;

use xtask::process::Signals;
use xtask::workspace::Workspace;

/// The variable with the number of repetitions; the launcher's tests read it.
const REPEATS: &str = "DTRAIN_SOAK";

/// Parts of the names of these tests.
const CASES: [&str; 4] = ["killed", "frozen", "inspected", "in_the_pause"];

/// The arguments of `soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Repetitions of each case
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeats: u32,
    /// Run only tests whose names contain this, such as `frozen`
    #[arg(long)]
    case: Option<String>,
}

/// Runs the tests and returns cargo's exit code.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace.root())
        .env(REPEATS, args.repeats.to_string())
        .args(["test", "--package", "dtrain", "--test", "launch", "--", "--nocapture"])
        .args(args.case.as_deref().map_or(CASES.to_vec(), |case| vec![case]));
    Ok(signals.run(&mut cargo)?.code)
}
