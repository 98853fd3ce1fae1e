//! `soak`: the tests that kill processes at random moments, many times over. No part of `test`: they take minutes.

use std::process::Command;

use anyhow::Result;

use crate::process::Signals;
use crate::workspace::Workspace;

/// How often the launcher's tests repeat what they kill; they read it.
const REPEATS: &str = "DTRAIN_SOAK";

/// What `soak` is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How often each case is repeated
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    repeats: u32,
}

/// Runs the tests and returns cargo's exit code.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(workspace.root())
        .env(REPEATS, args.repeats.to_string())
        .args([
            "test",
            "--package",
            "dtrain",
            "--test",
            "launch",
            "--",
            "killed",
            "--nocapture",
        ]);
    Ok(signals.run(&mut cargo)?.code)
}
