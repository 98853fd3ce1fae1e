//! `dtrain gpu`: shows the GPUs of this machine, and ends processes that use them.

mod clear;
mod info;
mod kill;
mod monitor;
pub(crate) mod owner;

use crate::cli::GpuCommand;
use crate::questions;
use dtrain_common::gpu::Nvidia;
use std::process::ExitCode;

/// Runs the command. Wrong usage and a missing driver give exit code 2.
pub(crate) fn run(command: &GpuCommand) -> anyhow::Result<ExitCode> {
    match command {
        GpuCommand::Info(args) => info::run(&mut Nvidia::open()?, args),
        GpuCommand::Monitor(args) => monitor::run(&mut Nvidia::open()?, args),
        GpuCommand::SuggestBatchSize(args) => questions::suggest(args),
        GpuCommand::Clear => clear::run(),
        GpuCommand::Kill(args) => kill::run(&mut Nvidia::open()?, args),
    }
}

#[cfg(test)]
mod fake;
