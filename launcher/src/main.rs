//! The `dtrain` command: starts data-parallel training, or any program, as one process per GPU.
//!
//! `cli` reads the command line, `launch` checks a launch and runs it by the rules of `dtrain_agent`. `ask`
//! lets the worker program plan and profile. `gpus` and `ckpt` are the commands about GPUs and checkpoints.
//! Architecture invariant: the launcher does not link libtorch. Of its workers it knows only the variables of
//! `dtrain_common::env` and the protocol of PyTorch's store.
#![deny(unsafe_code)]

mod ask;
mod ckpt;
mod cli;
mod gpus;
mod launch;
mod plan;
mod python;
mod stdout;

use anyhow::Context;
use cli::{Command, LaunchArgs};
use dtrain_agent::clock::Begun;
use dtrain_agent::io::guardian::{self, Behind, Role};
use dtrain_agent::io::process::{descriptors, handlers};
use dtrain_common::exit::ExitStatus;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let begun = Begun::now();
    let command = match cli::read_command(std::env::args_os().collect()) {
        Ok(command) => command,
        Err(error) => {
            // Also --help and --version. If the stream is closed, no message is possible.
            let _ = error.print();
            return if error.use_stderr() { ExitStatus::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let done = match command {
        Command::Launch(args) => Ok(launch(&Arc::from(args), begun)),
        Command::Eval(args) => ask::eval(&args).map(|args| launch(&Arc::new(args), begun)),
        Command::Plan(args) => ask::plan(&args),
        Command::Profile(args) => ask::profile(&args),
        Command::Ckpt(command) => ckpt::run(&command),
        Command::Gpu(command) => gpus::run(&command),
    };
    done.unwrap_or_else(|error| refuse(&error, &[]))
}

fn launch(args: &Arc<LaunchArgs>, begun: Begun) -> ExitCode {
    let done = match guardian::role() {
        Role::Guardian => guardian::stand_behind(&args.contract.signals()),
        Role::Launcher(behind) => run(args, behind, begun),
        Role::Abandoned => return ExitStatus::WorkerFailed.into(),
    };
    done.unwrap_or_else(|error| refuse(&error, &args.from_environment))
}

fn run(args: &Arc<LaunchArgs>, behind: Behind, begun: Begun) -> anyhow::Result<ExitCode> {
    let inherited = descriptors::inherited();
    inherited.keep_to_this_process(&std::env::args_os().collect::<Vec<_>>());
    handlers::write_to_any_terminal().context("cannot change how signals are received")?;
    launch::run(args, behind, begun).map(ExitCode::from)
}

/// Prints the error. `from_environment` are the variables that set flags.
fn refuse(error: &anyhow::Error, from_environment: &[String]) -> ExitCode {
    let mut said = stdout::in_one_line(error);
    if !from_environment.is_empty() {
        said = format!("{said} (set in the environment: {})", from_environment.join(", "));
    }
    // If standard error is closed, the exit code still reports the error.
    let _ = writeln!(std::io::stderr(), "dtrain: error: {said}");
    ExitStatus::Usage.into()
}
