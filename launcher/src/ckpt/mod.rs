//! `dtrain ckpt`: the checkpoints of a run, known by their manifests and the headers of their files. Nothing here holds a tensor.

mod export;
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
    };
    done.or_else(|error| {
        let Some(Failed { status, .. }) = error.downcast_ref() else {
            return Err(error);
        };
        // If standard error is closed there is nobody left to tell, and the exit code still says it.
        let _ = writeln!(io::stderr(), "dtrain: error: {error}");
        Ok((*status).into())
    })
}
