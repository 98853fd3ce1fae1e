//! `dtrain diff`: the first step at which two runs differ, in what, and why. It reads files alone; for the names of changed samples, it asks the trainer.

mod comparison;
mod inputs;
mod names;
mod object;
mod reading;
mod run;
mod size;
mod steps;
mod text;
mod weights;

use crate::cli::DiffArgs;
use crate::stdout::print;
use comparison::{Comparison, Verdict};
use dtrain_common::exit::ExitStatus;
pub(crate) use inputs::flat;
use run::Run;
use std::process::ExitCode;

/// Runs the command: 0 for equal runs, 1 for different ones.
///
/// # Errors
///
/// The runs cannot be compared (2).
pub(crate) fn run(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let comparison = Comparison::of(Run::read(&args.a)?, Run::read(&args.b)?, args.tolerance)?;
    let text = match args.json {
        true => format!("{}\n", object::object(&comparison)),
        false => text::text(&comparison),
    };
    print(&text)?;
    let status = match comparison.verdict() {
        Verdict::Equal => ExitStatus::Success,
        Verdict::Rounding | Verdict::Different => ExitStatus::Program(1),
    };
    Ok(status.into())
}

#[cfg(test)]
mod tests;
