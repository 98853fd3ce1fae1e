//! `memory`: compares predicted memory with measured memory, and trains under budgets from hopeless to ample.

mod accuracy;
mod cases;
mod fake_gpus;
mod programs;
mod sweep;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

pub(crate) use accuracy::{mib, profiled};
pub(crate) use cases::{CASES, Case};

use xtask::process::Signals;
use xtask::setup::SetArgs;
use xtask::workspace::Workspace;

use crate::commands::{FinishedCommand, run_to_end};
use crate::files::{create_own, find_fake_programs, find_programs, write};
use crate::machine::Machine;
use crate::report::Report;

/// The arguments of `memory`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Run only this part
    #[arg(value_enum)]
    part: Option<Part>,
    /// Built dtrain with its worker [default: a new release build]
    #[arg(long, value_name = "PATH")]
    dtrain: Option<PathBuf>,
    /// Fake GPUs: a Python with torch 2.11 and the libraries of the programs
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Number of budgets
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=1000))]
    budgets: u32,
    /// Fake GPUs: also run the imported programs of a list such as tests/lab/models.toml, with --python
    #[arg(long, value_name = "FILE", requires = "python")]
    programs: Option<PathBuf>,
    /// Fake GPUs: run all configurations on every machine, not each on one
    #[arg(long)]
    every_machine: bool,
    /// Fake GPUs: configurations whose names contain this text; repeatable [default: all]
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Fake GPUs: number of random trainings
    #[arg(long, default_value_t = 0)]
    trainings: u32,
    /// Fake GPUs: seed of the random trainings
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Compare predictions with measurements for many configurations
    Accuracy,
    /// Train under many budgets: equal losses, or exit code 3
    Sweep,
    /// Compare predictions with the allocator on fake GPUs
    FakeGpus,
}

/// Runs the parts. The exit code is 1 if a goal is missed.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let dtrain = match &args.dtrain {
        Some(path) => path.clone(),
        None => {
            let find = if args.part == Some(Part::FakeGpus) { find_fake_programs } else { find_programs };
            match find(workspace, signals, &args.set, None)? {
                Ok(folder) => folder.join("dtrain"),
                Err(code) => return Ok(code),
            }
        }
    };
    let folder = workspace.target().join("memory");
    let (work, out) = (create_own(&folder)?, folder.join("results.json"));
    let bench = Bench { signals, dtrain, machine: None, work };
    let machine = Machine::describe(Some(workspace), serde_json::Value::Null)?;
    let mut report = Report::new("cargo xtask memory".to_owned(), machine);
    if matches!(args.part, None | Some(Part::Accuracy)) {
        report.groups.extend(accuracy::run(&bench)?);
    }
    if matches!(args.part, None | Some(Part::Sweep)) {
        report.groups.push(sweep::run(&bench, args.budgets)?);
    }
    if args.part == Some(Part::FakeGpus) {
        report.groups.extend(fake_gpus::run(&bench, workspace, args)?);
    }
    report.publish(&out)
}

/// Paths for the parts.
struct Bench<'a> {
    signals: &'a Signals,
    dtrain: PathBuf,
    /// The file of a machine of fake GPUs, on which dtrain runs.
    machine: Option<PathBuf>,
    /// The folder for the parts' files.
    work: PathBuf,
}

impl Bench<'_> {
    /// Writes a recipe and returns its path.
    fn recipe(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.work.join(format!("{name}.toml"));
        write(&path, text)?;
        Ok(path)
    }

    /// Runs dtrain to its end.
    fn dtrain(&self, arguments: &[&str], recipe: &Path, sets: &[String]) -> Result<FinishedCommand> {
        let mut command = self.command(&self.dtrain);
        command.args(arguments);
        for set in sets {
            command.args(["--set", set]);
        }
        run_to_end(self.signals, command.arg(recipe))
    }

    /// Returns a command that runs this program, on the machine if there is one.
    fn command(&self, program: &Path) -> Command {
        let Some(machine) = &self.machine else { return Command::new(program) };
        let mut command = Command::new(self.dtrain.with_file_name("fake-gpu"));
        command.arg("--machine").arg(machine).arg("--").arg(program);
        // Kernels compute nothing, so that more threads only get in each other's way.
        command.env("OMP_NUM_THREADS", "1");
        command
    }
}
