//! `dtrain report`: one HTML file about one or several runs, or the same page on loopback while they train.

mod charts;
mod cost;
mod curve;
mod evaluations;
mod facts;
mod failures;
mod live;
mod metrics;
mod numbers;
mod object;
mod page;
mod pictures;
mod recipes;

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::{remedy, write_atomic};
use dtrain_common::text::{counted, size};
use object::Run;

use crate::cli::ReportArgs;
use crate::runs;
use crate::stdout::{join_causes, print};

/// The report of one run, in its run directory.
const FILE_NAME: &str = "report.html";

/// Runs the command.
///
/// # Errors
/// None of the folders is a run directory, or the page can be neither written nor served.
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let (mut runs, left_out) = find(&args.runs)?;
    if args.live {
        return live::serve(runs, left_out, args.port);
    }
    let out = match (&args.output, runs.as_slice()) {
        (Some(out), _) => out.clone(),
        (None, [run]) => run.path().join(FILE_NAME),
        (None, runs) => {
            bail!("a report of {} needs a file; name it with -o FILE.html", counted(runs.len(), "run"))
        }
    };
    check_out(&out)?;
    let page = page::page(&object::object(&mut runs, &left_out, false));
    write_atomic(&out, page.as_bytes()).map_err(|error| {
        let elsewhere = if args.output.is_none() { ", or write elsewhere with -o FILE" } else { "" };
        anyhow!("cannot write {}: {error}{}{elsewhere}", out.display(), remedy(&error))
    })?;
    print(&format!("{} ({})\n", out.display(), size(page.len() as u64)))?;
    Ok(ExitStatus::Success.into())
}

/// Returns the runs, and a sentence about each folder that is no run, which is also printed.
fn find(paths: &[PathBuf]) -> anyhow::Result<(Vec<Run>, Vec<String>)> {
    let (mut runs, mut left_out, mut known) = (Vec::new(), Vec::new(), HashSet::new());
    for path in paths {
        match check(path) {
            // The same run twice is one.
            Ok(real) => runs.extend(known.insert(real).then(|| Run::new(path))),
            Err(error) if paths.len() == 1 => return Err(error),
            Err(error) => left_out.push(join_causes(&error)),
        }
    }
    if runs.is_empty() {
        bail!("no run to report: {}", left_out.join("; "));
    }
    for sentence in &left_out {
        // If standard error is closed, the page still has the sentence.
        let _ = writeln!(io::stderr(), "dtrain: warning: left out: {sentence}");
    }
    Ok((runs, left_out))
}

/// Checks that the folder is a run directory, and returns its real path.
fn check(path: &Path) -> anyhow::Result<PathBuf> {
    let shown = path.display();
    let real =
        fs::canonicalize(path).with_context(|| format!("cannot open {shown}; name a run directory"))?;
    if !real.is_dir() {
        bail!("{shown} is a file; name the run directory that holds it");
    }
    // A copy of the metrics alone has curves.
    if path.join("metrics.jsonl").is_file() {
        return Ok(real);
    }
    let found = runs::objects(path)?;
    let paths: Vec<&str> = found.iter().filter_map(|run| run["path"].as_str()).collect();
    match paths.as_slice() {
        [first, ..] if Path::new(first) == path => Ok(real),
        [first, ..] => bail!("{shown} is not a run directory, but holds some; name one, such as {first}"),
        [] => bail!("{shown} is not a run directory; `dtrain runs DIR` lists those below a folder"),
    }
}

/// Checks that a file in the place of the page is an earlier report.
fn check_out(out: &Path) -> anyhow::Result<()> {
    let shown = out.display();
    if out.is_dir() {
        bail!("{shown} is a folder; name a file, such as {}", out.join(FILE_NAME).display());
    }
    let mut begin = Vec::new();
    match runs::files::open(out) {
        Ok(None) => return Ok(()),
        Ok(Some((file, _))) => {
            let read = file.take(page::BEGIN.len() as u64).read_to_end(&mut begin);
            read.with_context(|| format!("cannot read {shown}"))?;
        }
        // A pipe, which nobody writes to, would be read for ever.
        Err(runs::files::Problem::NotAFile(_)) => {}
        Err(problem) => bail!("cannot read {shown}: {problem}"),
    }
    if begin != page::BEGIN.as_bytes() {
        bail!("{shown} exists and is not a report; name another file with -o");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
