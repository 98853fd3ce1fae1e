//! The `dtrain` command: starts data-parallel training, or any program, as one process per GPU.
//!
//! `cli` reads the command line, `launch` checks it and runs it, `agent` decides, `process` and `output` act.
//! Architecture invariant: the launcher links no libtorch and knows of what it launches only the environment
//! contract of `dtrain_common::env`.
#![deny(unsafe_code)]

mod agent;
mod cli;
mod launch;
mod output;
mod process;

use clap::Parser;
use cli::{Cli, Command};
use dtrain_common::exit::ExitStatus;
use launch::Begun;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let begun = Begun::now();
    // Answers --help, --version and wrong usage itself, before anything else is done.
    let Command::Launch(args) = Cli::parse().command;
    match launch::run(&args, begun) {
        Ok(status) => status.into(),
        Err(error) => {
            // If standard error is closed there is nobody left to tell, and the exit code still says it.
            let _ = writeln!(std::io::stderr(), "dtrain: error: {error:#}");
            ExitStatus::Usage.into()
        }
    }
}
