//! `dtrain trace`: joins the timelines of a run's ranks, and says what its steps wait for.
//!
//! [`read`] finds the ranks' files, [`align`] compares their clocks, [`times`] adds up a step, [`verdict`] judges
//! its [`shares`], and [`join`] writes one file with [`modules`] for backward.

mod advice;
mod align;
mod intervals;
mod join;
mod modules;
mod read;
mod shares;
mod table;
mod times;
mod verdict;

use crate::cli::TraceArgs;
use crate::stdout::print;
use anyhow::{Context, anyhow};
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::{remedy, write_atomic};
use dtrain_common::run_dir::RunDir;
use dtrain_common::text::size;
use read::Traces;
use std::process::ExitCode;

pub(crate) use verdict::Verdict;

/// Runs the command.
///
/// # Errors
///
/// The run has no timeline, or the file cannot be written.
pub(crate) fn run(args: &TraceArgs) -> anyhow::Result<ExitCode> {
    let run_dir = RunDir::new(&args.run);
    let traces = Traces::read(&run_dir).map_err(|error| match Verdict::of_run(&run_dir) {
        Some(verdict) => anyhow!("{error:#}; its metrics alone say: {verdict}"),
        None => error,
    })?;
    let clocks = align::clocks(&traces.ranks);
    let mut text = String::new();
    table::append(&mut text, &traces, &clocks);
    if let Some(verdict) = Verdict::of_traces(&run_dir, &traces) {
        text.push_str(&format!("\n{verdict}\n"));
    }
    let path = args.output.clone().unwrap_or_else(|| run_dir.traces().join("trace.json.gz"));
    let joined = join::join(&traces, &clocks).compressed()?;
    let written = write_atomic(&path, &joined);
    written.map_err(|error| {
        let remedy = remedy(&error);
        anyhow::Error::new(error).context(format!("cannot write {}{remedy}", path.display()))
    })?;
    let bytes = size(joined.len() as u64);
    text.push_str(&format!("\n{} ({bytes}): open it at https://ui.perfetto.dev\n", path.display()));
    print(&text).context("cannot write to standard output")?;
    Ok(ExitStatus::Success.into())
}

#[cfg(test)]
mod tests;
