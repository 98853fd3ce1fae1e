//! `dtrain gpu`: what the GPUs of this machine do, and ending what holds them.

mod clear;
mod info;
mod kill;
mod monitor;
mod owner;

use crate::ask;
use crate::cli::GpuCommand;
use dtrain_common::gpu::Nvidia;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// Wrong usage, or no driver where one is needed: exit code 2.
pub(crate) fn run(command: &GpuCommand) -> anyhow::Result<ExitCode> {
    match command {
        GpuCommand::Info(args) => info::run(&mut Nvidia::open()?, args),
        GpuCommand::Monitor(args) => monitor::run(&mut Nvidia::open()?, args),
        GpuCommand::SuggestBatchSize(args) => ask::suggest(args),
        GpuCommand::Clear => clear::run(),
        GpuCommand::Kill(args) => kill::run(&mut Nvidia::open()?, args),
    }
}

/// Writes to standard output. Whether somebody is still there to read it.
///
/// # Errors
/// The output cannot be written, as on a full disk.
fn say(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}

#[cfg(test)]
mod fixtures;
