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
use xtask::{book, check, demo, fake_gpu, setup, wheel};

/// Set up, try, test and check dtrain
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
    /// Fetch libtorch into target/libtorch, for cargo build, test and run
    ///
    /// Fetches only missing packages, with pip, by pinned version and checksum.
    /// If LIBTORCH is set, checks and uses that libtorch.
    Setup(setup::Args),
    /// Set up, build dtrain and train a network on generated images
    ///
    /// Trains on all GPUs, or in two processes on the CPU.
    /// Fails if the loss rises or accuracy stays below 3x chance.
    Demo(demo::Args),
    /// Set up and run the tests of every crate
    Test(check::TestArgs),
    /// Set up; check formatting, lints, documentation, tests, book, demo, MPI, until one fails
    Check(check::Args),
    /// Build the documentation into target/book and check its links
    Book,
    /// Write dtrain as a Python wheel and as an archive of its programs to target/wheel
    ///
    /// pip installs the wheel beside torch 2.11. The programs are those of a release build.
    Wheel(wheel::Args),
    /// Run a program on a machine of fake GPUs, to test without one
    ///
    /// Builds the fake libraries on first use. Example: cargo xtask fake-gpu --gpus 2 -- dtrain gpu info
    #[command(disable_help_flag = true)]
    FakeGpu(fake_gpu::Args),
    /// A command of the lab
    #[command(external_subcommand)]
    Lab(Vec<OsString>),
}

/// The commands of the package `lab`, which is built on their first use.
const LAB: [&str; 12] = [
    "parity       Make the files of tests/parity/reference again, with PyTorch",
    "bench        Compare dtrain's speed and memory with PyTorch's, on this machine",
    "memory       Compare memory predictions with measurements; train under many budgets",
    "exported     Compare exported models of timm, torchvision and Hugging Face with PyTorch",
    "kills        Kill trainings at random moments, resume and compare them",
    "soak         Kill launchers, guardians and workers at many moments",
    "cluster      Simulate runs on many nodes with random faults; check every order of events of three",
    "fuzz         Read a million randomly changed checkpoint files",
    "import-fuzz  Import random modules of PyTorch; compare training steps with it",
    "gpu-faults   Let fake GPUs fail at many moments of short trainings",
    "gpu-test     Check dtrain on this machine's GPUs; compare it with PyTorch",
    "torchrun     Compare dtrain and torchrun as launchers, bit by bit",
];

fn lab_help() -> String {
    let lines = LAB.join("\n  ");
    format!("Measurements, not part of the tests (details: COMMAND --help):\n  {lines}\n")
}

fn main() -> ExitCode {
    process::to_exit_code(run(Cli::parse().command))
}

fn run(command: Command) -> Result<u8> {
    let signals = Signals::watch()?;
    let workspace = Workspace::find()?;
    match command {
        Command::Setup(args) => setup::run(&workspace, &signals, &args).map(|_| 0),
        Command::Demo(args) => demo::run(&workspace, &signals, &args),
        Command::Test(args) => check::test(&workspace, &signals, &args),
        Command::Check(args) => check::run(&workspace, &signals, &args),
        Command::Book => {
            let ready = setup::run(&workspace, &signals, &setup::Args::default())?;
            book::run(&workspace, &signals, &ready)
        }
        Command::Wheel(args) => wheel::run(&workspace, &signals, &args),
        Command::FakeGpu(args) => fake_gpu::run(&workspace, &signals, &args),
        Command::Lab(args) => {
            if !LAB.iter().any(|line| line.split(' ').next().is_some_and(|name| args[0] == *name)) {
                let message = format!("unrecognized subcommand '{}'", args[0].display());
                Cli::command().error(ErrorKind::InvalidSubcommand, message).exit();
            }
            let mut cargo = workspace.cargo();
            cargo.args(["run", "--quiet", "--release", "--package", "lab", "--"]).args(&args);
            Ok(signals.run(&mut cargo)?.code)
        }
    }
}
