//! `soak`: the tests whose outcome depends on the moment, many times over: processes are killed, jobs frozen, workers inspected
//! by a slow debugger, and signals sent while no worker runs. No part of `test`: they take minutes.

use std::process::Command;

use anyhow::Result;

use xtask::process::Signals;
use xtask::workspace::Workspace;

/// How often the launcher's tests repeat what they kill; they read it.
const REPEATS: &str = "DTRAIN_SOAK";

/// Parts of the names of these tests.
const CASES: [&str; 4] = ["killed", "frozen", "inspected", "in_the_pause"];

/// What `soak` is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often each case is repeated
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeats: u32,
    /// Only tests whose names contain this, such as `frozen`
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
