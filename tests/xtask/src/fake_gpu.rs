//! `fake-gpu`: a program on a machine of fake GPUs. The package `dtrain-fake-gpu` has the machine and the command.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::process::Signals;
use crate::setup::Ready;
use crate::workspace::Workspace;

/// The arguments of `fake-gpu`, which its own program checks.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Arguments of the command: see `cargo xtask fake-gpu --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Builds the machine if needed, and runs the program on it. Returns the program's exit code.
pub fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let ready = Ready::without_libtorch();
    let mut build = ready.cargo(workspace);
    build.args(["build", "--quiet", "--release", "--package", "dtrain-fake-gpu", "--bin", "fake-gpu"]);
    let code = signals.run(&mut build)?.code;
    if code != 0 {
        eprintln!("cannot build the fake GPUs, see cargo's output");
        return Ok(code);
    }
    // Not by `cargo run`: the program starts in the caller's folder.
    let program = ready.build_folder(workspace)?.join("release/fake-gpu");
    Ok(signals.run(Command::new(program).args(&args.arguments))?.code)
}
