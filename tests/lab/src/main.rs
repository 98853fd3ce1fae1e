//! The lab: benchmarks, kills, memory sweeps, the GPU suite and the comparison with torchrun. Start with
//! `cargo xtask NAME`. Not part of the tests: the results depend on the machine.

mod attempts;
mod bench;
mod cluster;
mod commands;
mod exported;
mod files;
mod fuzz;
mod gpu_faults;
mod gpu_test;
mod import_fuzz;
mod kills;
mod machine;
mod marked;
mod memory;
mod parity;
mod python;
mod report;
mod soak;
mod stats;
mod torchrun;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::process::{self, Signals};
use xtask::workspace::Workspace;

/// Measure dtrain
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make the files of tests/parity/reference again, with PyTorch
    ///
    /// Installs PyTorch into target/parity-venv (5 GB).
    /// Needed only if a script tests/parity/make_*.py changes.
    Parity,
    /// Compare dtrain's speed and memory with PyTorch's, on this machine
    ///
    /// All benchmarks take about half an hour; use an idle machine.
    /// Prints medians, ratios and goals, and writes JSON.
    /// Installs PyTorch into target/bench-venv (5 GB) without --python.
    Bench(bench::Args),
    /// Compare memory predictions with measurements; train under many budgets
    ///
    /// Takes some minutes and prints tables in Markdown.
    /// Exit code 1: a prediction or a run missed its goal.
    Memory(memory::Args),
    /// Compare exported models of timm, torchvision and Hugging Face with PyTorch
    ///
    /// Takes a quarter of an hour and prints a table in Markdown.
    /// Installs PyTorch into target/exported-venv (5 GB) without --python.
    /// Exit code 1: a gradient differs in a bit, or a step is slower.
    Exported(exported::Args),
    /// Kill trainings at random moments, resume and compare them
    ///
    /// Takes some minutes and prints a table in Markdown.
    /// Checkpoints must stay intact, and resumed runs end bit-equal.
    /// Exit code 1: a case failed; its files stay in target/kills.
    Kills(kills::Args),
    /// Kill launchers, guardians and workers at many moments
    ///
    /// Takes some minutes. No process may remain.
    /// Needs neither libtorch nor Python, except with --trainings and --slurm.
    Soak(soak::Args),
    /// Simulate runs on many nodes with random faults
    ///
    /// Drops, delays, partitions, freezes and deaths, by a seed.
    /// Exit code 1: two epochs ran at once, or a run did not end.
    Cluster(cluster::Args),
    /// Read a million randomly changed checkpoint files
    ///
    /// Takes some minutes. Readers must report an error and not panic.
    /// Their memory must stay in proportion to the file.
    Fuzz(fuzz::Args),
    /// Import random modules of PyTorch; compare training steps with it
    ///
    /// 500 modules take about 20 minutes; a stopped run continues.
    /// Installs PyTorch as `exported` does.
    /// Exit code 1: a module differs, or is refused without reason.
    ImportFuzz(import_fuzz::Args),
    /// Let fake GPUs fail at many moments of short trainings
    ///
    /// Takes three quarters of an hour and prints a table in Markdown.
    /// Exit code 1: a case failed; its files stay in target/gpu-faults.
    GpuFaults(gpu_faults::Args),
    /// Check dtrain on this machine's GPUs; compare it with PyTorch
    ///
    /// Prints a table and writes JSON.
    /// Exit code 1: a check failed; 2: no GPU.
    GpuTest(gpu_test::Args),
    /// Compare dtrain and torchrun as launchers, bit by bit
    ///
    /// Runs a DDP script under both, and dtrain's worker under both.
    /// Exit code 1: a loss or a parameter differs in a bit.
    /// Installs PyTorch as `bench` does.
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
        Command::GpuFaults(args) => gpu_faults::run(&workspace()?, &signals, &args),
        Command::Parity => parity::run(&workspace()?, &signals),
        Command::Bench(args) => bench::run(&workspace()?, &signals, &args),
        Command::Memory(args) => memory::run(&workspace()?, &signals, &args),
        Command::Exported(args) => exported::run(&workspace()?, &signals, &args),
        Command::Kills(args) => kills::run(&workspace()?, &signals, &args),
        Command::Fuzz(args) => fuzz::run(&workspace()?, &signals, &args),
        Command::ImportFuzz(args) => import_fuzz::run(&workspace()?, &signals, &args),
        Command::Soak(args) => soak::run(&workspace()?, &signals, &args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Torchrun(args) => torchrun::run(&workspace()?, &signals, &args),
    }
}
