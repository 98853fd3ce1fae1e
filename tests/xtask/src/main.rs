//! `cargo xtask`: tools around building dtrain, from a new machine to a running training.
//!
//! `setup` fetches libtorch; other commands that need libtorch run it first. Messages go to standard error.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use xtask::process::{self, Signals};
use xtask::workspace::Workspace;
use xtask::{check, demo, setup};

/// Set-up, demo, tests and checks of dtrain
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = true,
    after_help = lab_help()
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fetch libtorch into target/libtorch, so that `cargo build`, `cargo test` and `cargo run` work
    ///
    /// Fetches what is missing with pip, by pinned version and checksum. Does nothing where all is there already. A
    /// LIBTORCH of your own is used instead, once its version has been checked.
    Setup(setup::Args),
    /// Set up, build dtrain and train a small network on generated images: a run to see that all works
    ///
    /// Trains on every GPU, or else in two processes on the CPU, and then checks what the run wrote: the loss must
    /// have fallen and the test accuracy must be at least three times chance.
    Demo(demo::Args),
    /// Set up and run the tests of every crate
    Test(check::TestArgs),
    /// Set up, then check formatting, lints, documentation and tests; stops at the first that fails
    Check(check::Args),
    /// A command of the lab
    #[command(external_subcommand)]
    Lab(Vec<OsString>),
}

/// The commands of the package `lab`, which is built on their first use.
const LAB: [&str; 8] = [
    "parity    Make the reference files under tests/parity/reference anew, with PyTorch",
    "bench     Measure dtrain beside PyTorch, in turn on this machine",
    "memory    Compare predictions of memory with measurements, and train under budgets",
    "kills     Kill trainings at random moments, resume them, and compare",
    "soak      Kill launchers, guardians and workers at many moments",
    "fuzz      Have the readers of checkpoints read a million changed files",
    "gpu-test  Check dtrain on this machine's GPUs, and measure it beside PyTorch there",
    "torchrun  Run a PyTorch script under dtrain and dtrain's worker under torchrun, and compare",
];

fn lab_help() -> String {
    let lines = LAB.join("\n  ");
    format!("Measurements, which are no part of the tests (COMMAND --help tells more):\n  {lines}\n")
}

fn main() -> ExitCode {
    process::end(run(Cli::parse().command))
}

fn run(command: Command) -> Result<u8> {
    let signals = Signals::watch()?;
    let workspace = Workspace::find()?;
    match command {
        Command::Setup(args) => setup::run(&workspace, &signals, &args).map(|_| 0),
        Command::Demo(args) => demo::run(&workspace, &signals, &args),
        Command::Test(args) => check::test(&workspace, &signals, &args),
        Command::Check(args) => check::run(&workspace, &signals, &args),
        Command::Lab(words) => {
            if !LAB.iter().any(|line| line.split(' ').next().is_some_and(|name| words[0] == *name)) {
                let words = format!("unrecognized subcommand '{}'", words[0].display());
                Cli::command().error(ErrorKind::InvalidSubcommand, words).exit();
            }
            let mut cargo = workspace.cargo();
            cargo.args(["run", "--quiet", "--release", "--package", "lab", "--"]).args(&words);
            Ok(signals.run(&mut cargo)?.code)
        }
    }
}
