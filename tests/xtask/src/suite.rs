//! `test`: the tests of every crate.

use anyhow::Result;

use crate::process::Signals;
use crate::setup::{self, SetArgs};
use crate::workspace::Workspace;

/// What `test` is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Passed on to `cargo test --workspace`, for example `-- batch` or `-- --release`
    #[arg(last = true)]
    args: Vec<String>,
}

/// Runs the tests and returns cargo's exit code.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
    let mut cargo = ready.cargo(workspace);
    Ok(signals
        .run(cargo.args(["test", "--workspace"]).args(&args.args))?
        .code)
}
