//! `dtrain runs`: the runs below a folder. It reads small files and ends of files, and locks and writes nothing.

pub(crate) mod files;
mod find;
mod fit;
pub(crate) mod growing;
pub(crate) mod lines;
mod object;
mod progress;
mod run;
mod screen;
mod state;
mod table;
mod watch;

use crate::cli::{RunsArgs, RunsCommand, WhichRuns};
use crate::screen::size_of_terminal;
use crate::stdout::{print, print_coloured};
use anyhow::Context;
use dtrain_common::exit::ExitStatus;
use find::Found;
use run::Run;
pub(crate) use run::percent;
use serde_json::Value;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::SystemTime;

/// Readers at one time: on a network file system they wait for its server.
const READERS: usize = 8;

/// Runs the command.
///
/// # Errors
///
/// The folder cannot be listed, or standard output cannot be written.
pub(crate) fn run(args: &RunsArgs) -> anyhow::Result<ExitCode> {
    if let Some(RunsCommand::Watch(args)) = &args.command {
        return watch::run(args);
    }
    let list = List::read(&args.which, SystemTime::now())?;
    match args.json {
        true => print(&format!("{}\n", object::object(&list)))?,
        false => print_coloured(&table::coloured(&list, size_of_terminal().0))?,
    };
    Ok(ExitStatus::Success.into())
}

/// Returns the object of `dtrain runs --json` for each run in a folder, which may be a run directory.
///
/// # Errors
///
/// The folder cannot be listed.
pub(crate) fn objects(dir: &Path) -> anyhow::Result<Vec<Value>> {
    let list = List::read(&WhichRuns { dir: dir.to_owned(), state: Vec::new() }, SystemTime::now())?;
    let Value::Array(runs) = object::object(&list)["runs"].take() else { return Ok(Vec::new()) };
    Ok(runs)
}

/// The runs below a folder.
#[derive(Debug)]
struct List {
    dir: PathBuf,
    /// In the order of their paths.
    runs: Vec<Run>,
    /// Whether folders were left out.
    is_cut: bool,
    /// Whether runs in other states were left out.
    is_filtered: bool,
}

impl List {
    fn read(which: &WhichRuns, now: SystemTime) -> anyhow::Result<Self> {
        let dir = which.dir.clone();
        let (found, is_cut) = find::find(&dir).with_context(|| {
            format!("cannot list {}; name the folder that holds your run directories", dir.display())
        })?;
        let mut runs = read(&found, now);
        let is_filtered = !which.state.is_empty();
        runs.retain(|run| !is_filtered || which.state.contains(&run.state));
        Ok(Self { dir, runs, is_cut, is_filtered })
    }

    /// Returns the run's path below the folder.
    fn name<'a>(&self, run: &'a Run) -> &'a Path {
        find::name(&run.path, &self.dir)
    }
}

/// Reads the runs, several at a time, in their order.
fn read(found: &[Found], now: SystemTime) -> Vec<Run> {
    let read = |part: &[Found]| part.iter().map(|found| Run::read(found, now)).collect::<Vec<_>>();
    let size = NonZeroUsize::new(found.len().div_ceil(READERS)).map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        let parts: Vec<_> = found.chunks(size).map(|part| (part, scope.spawn(move || read(part)))).collect();
        // A reader does not panic; if one did, its runs are read here.
        parts.into_iter().flat_map(|(part, reader)| reader.join().unwrap_or_else(|_| read(part))).collect()
    })
}

#[cfg(test)]
mod tests;
