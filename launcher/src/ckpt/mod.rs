//! `dtrain ckpt`: the checkpoints of a run, from manifests and headers. No tensor is kept in memory.

mod average;
mod export;
mod figures;
mod find;
mod inventory;
mod ls;
mod names;
mod problem;
mod progress;
mod prune;
mod round;
mod show;
mod tensors;
mod verify;

pub(crate) use export::{check_out, merge};
pub(crate) use find::{Model, model};

use crate::cli::CkptCommand;
use problem::Failed;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs the command. The exit code of wrong usage is 2.
pub(crate) fn run(command: &CkptCommand) -> anyhow::Result<ExitCode> {
    let done = match command {
        CkptCommand::Ls(args) => ls::run(args),
        CkptCommand::Show(args) => show::run(args),
        CkptCommand::Verify(args) => verify::run(args),
        CkptCommand::Prune(args) => prune::run(args),
        CkptCommand::Export(args) => export::run(args),
        CkptCommand::Average(args) => average::run(args),
    };
    done.or_else(|error| {
        let Some(Failed { status, .. }) = error.downcast_ref() else {
            return Err(error);
        };
        // If standard error is closed, the exit code still reports the failure.
        let _ = writeln!(io::stderr(), "dtrain: error: {error}");
        Ok((*status).into())
    })
}
