//! `fuzz`: feeds randomly changed checkpoint files to the readers. `cargo test` tries a few of them.

use anyhow::Result;

use xtask::process::Signals;
use xtask::setup::{self, SetArgs};
use xtask::workspace::Workspace;

/// The variable with the number of files that the test tries.
const CASES: &str = "DTRAIN_FUZZ";

/// The arguments of `fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Number of changed files
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    cases: u32,
}

/// Runs the test and returns cargo's exit code.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
    let mut cargo = ready.cargo(workspace);
    cargo.args(["test", "--package", "dtrain-tests", "--test", "alone", "--", "fuzz::", "--nocapture"]);
    Ok(signals.run(cargo.env(CASES, args.cases.to_string()))?.code)
}
