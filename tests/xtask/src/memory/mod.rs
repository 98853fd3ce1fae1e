//! `memory`: what is predicted of memory beside what is taken, and runs under budgets from hopeless to ample.

mod accuracy;
mod cases;
mod sweep;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

pub(crate) use accuracy::profiled;
pub(crate) use cases::{CASES, Case};

use crate::process::Signals;
use crate::setup::{self, Problem, SetArgs};
use crate::workspace::Workspace;

/// What `memory` is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Only this part
    #[arg(value_enum)]
    part: Option<Part>,
    /// A dtrain that is built already, with its worker beside it, instead of one for release
    #[arg(long, value_name = "PATH")]
    dtrain: Option<PathBuf>,
    /// A Python with torch 2.11 and torchvision: predictions for their networks are measured too
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// How many budgets are tried
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(2..=1000))]
    budgets: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Predictions beside the accounting allocator, for models, micro-batches, precisions, optimizers and more
    Accuracy,
    /// One training under many budgets: each must train as without one, or end with exit code 3
    Sweep,
}

/// Runs what is asked for. The exit code is 1 where a goal is missed.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let dtrain = match &args.dtrain {
        Some(path) => path.clone(),
        None => {
            let ready = setup::run(workspace, signals, &args.set.clone().into())?;
            let code = ready.build_dtrain(workspace, signals, "release")?;
            if code != 0 {
                eprintln!("memory failed: dtrain does not build");
                return Ok(code);
            }
            ready.build_folder(workspace)?.join("release/dtrain")
        }
    };
    let work = workspace.target().join("memory");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
    }
    fs::create_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
    let bench = Bench {
        signals,
        dtrain,
        work,
        scripts: &workspace.root().join("tests/bench/script_models.py"),
    };
    let mut met = true;
    if args.part != Some(Part::Sweep) {
        met &= accuracy::run(&bench, args.python.as_deref())?;
    }
    if args.part != Some(Part::Accuracy) {
        met &= sweep::run(&bench, args.budgets)?;
    }
    Ok(u8::from(!met))
}

/// Where the parts find what they need.
struct Bench<'a> {
    signals: &'a Signals,
    dtrain: PathBuf,
    /// A folder of their own.
    work: PathBuf,
    /// Writes networks as TorchScript.
    scripts: &'a Path,
}

impl Bench<'_> {
    /// Writes a recipe and returns its path.
    fn recipe(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.work.join(format!("{name}.toml"));
        fs::write(&path, text).map_err(|error| Problem::write(&path, error))?;
        Ok(path)
    }

    /// Runs dtrain to its end: exit code, standard output, standard error.
    fn dtrain(&self, arguments: &[&str], recipe: &Path, sets: &[String]) -> Result<(i32, String, String)> {
        let (verb, rest) = arguments.split_first().context("a command of dtrain's")?;
        let mut command = Command::new(&self.dtrain);
        command.arg(verb).args(rest);
        for set in sets {
            command.args(["--set", set]);
        }
        command.arg(recipe).stdin(Stdio::null());
        let output = command
            .output()
            .with_context(|| format!("cannot run {}", self.dtrain.display()))?;
        self.signals.check()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Some(code) = output.status.code() else {
            bail!("dtrain was killed: {}\n{}", output.status, text(&output.stderr));
        };
        Ok((code, text(&output.stdout), text(&output.stderr)))
    }
}
