//! The lab: benchmarks, kills, memory sweeps, the GPU suite and the comparison with torchrun. Start with
//! `cargo xtask NAME`. Not part of the tests: the results depend on the machine.

mod attempts;
mod bench;
mod fuzz;
mod gpu_test;
mod kills;
mod machine;
mod marked;
mod memory;
mod parity;
mod place;
mod python;
mod report;
mod rounds;
mod soak;
mod started;
mod stats;
mod torchrun;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::process::{self, Signals};
use xtask::workspace::Workspace;

/// Measurements of dtrain
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the reference files under tests/parity/reference anew, with PyTorch
    ///
    /// Installs PyTorch and torchvision into target/parity-venv (5 GB on the disk) and runs the scripts make_*.py of
    /// tests/parity there. Only needed when one of them changes: the files are in the repository.
    Parity,
    /// Measure dtrain beside PyTorch, in turn on this machine: all of it takes about half an hour
    ///
    /// Prints medians over the rounds, ratios and goals, and writes all of it as JSON. Installs PyTorch and torchvision into
    /// target/bench-venv (5 GB on the disk) unless --python names a Python that has them. Leave the machine alone meanwhile.
    Bench(bench::Args),
    /// Hold predictions of memory against what is taken, and train under budgets from hopeless to ample: some minutes
    ///
    /// Prints tables in Markdown. The exit code is 1 where a prediction or a run misses its goal.
    Memory(memory::Args),
    /// Kill trainings at random moments, resume them, and compare with runs that nobody killed: takes some minutes
    ///
    /// Kills a worker, all workers or the launcher, many of them while a checkpoint is written. Every checkpoint must be whole
    /// after each, the resumed run must end with the same bits, and no process may be left. Prints a table in Markdown. The
    /// exit code is 1 where something missed; what it left is kept in target/kills then.
    Kills(kills::Args),
    /// Kill launchers, guardians and workers at many moments, and see that no process is left: takes some minutes
    ///
    /// Needs neither libtorch nor Python.
    Soak(soak::Args),
    /// Have the readers of checkpoints read a million changed files: takes some minutes
    ///
    /// None may be read as whole, panic, or take more memory than files of that length do.
    Fuzz(fuzz::Args),
    /// Check dtrain on this machine's GPUs, and measure it beside PyTorch there
    ///
    /// Collectives by NCCL, kernels against PyTorch's results, trainings cut up in every way, graphs, predictions of memory, faults and
    /// benchmarks. Prints a table and writes JSON. The exit code is 1 where something does not hold, and 2 without a GPU.
    GpuTest(gpu_test::Args),
    /// Run a PyTorch script under dtrain and dtrain's worker under torchrun, and compare the results
    ///
    /// The script trains by DistributedDataParallel over Gloo, in two processes: by torchrun, by `dtrain launch -- python
    /// script.py`, `dtrain launch script.py` and `dtrain launch -m script`. The exit code is 1 where a loss or a parameter
    /// differs in a bit. Installs PyTorch as `bench` does.
    Torchrun(torchrun::Args),
}

fn main() -> ExitCode {
    process::to_exit_code(run(Cli::parse().command))
}

fn run(command: Command) -> Result<u8> {
    let signals = Signals::watch()?;
    // A `gpu-test` pack runs without a workspace.
    let workspace = Workspace::find;
    match command {
        Command::GpuTest(args) => gpu_test::run(&signals, &args),
        Command::Parity => parity::run(&workspace()?, &signals),
        Command::Bench(args) => bench::run(&workspace()?, &signals, &args),
        Command::Memory(args) => memory::run(&workspace()?, &signals, &args),
        Command::Kills(args) => kills::run(&workspace()?, &signals, &args),
        Command::Fuzz(args) => fuzz::run(&workspace()?, &signals, &args),
        Command::Soak(args) => soak::run(&workspace()?, &signals, &args),
        Command::Torchrun(args) => torchrun::run(&workspace()?, &signals, &args),
    }
}
