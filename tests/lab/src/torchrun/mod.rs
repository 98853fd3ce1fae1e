//! `torchrun`: runs a PyTorch script with dtrain, and dtrain's worker with torchrun, and compares results.

mod compare;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::python::{environment, torchrun};
use xtask::process::{Interrupted, Signals};
use xtask::setup::SetArgs;
use xtask::workspace::Workspace;

use crate::commands::run_to_end;
use crate::files::{create_empty, find_programs, read};
use crate::machine::Machine;
use crate::report::{Group, Report, Row, Verdict};
use compare::{difference, parse_answers, read_losses};

/// The folder with the script, from the workspace's root, and the script's name as a module.
const SOURCES: &str = "tests/bench";
const MODULE: &str = "ddp_script";

/// Ranks of every run.
const RANKS: usize = 2;

/// Steps of the script and of the recipe.
const SCRIPT_STEPS: usize = 20;
const RECIPE_STEPS: usize = 8;

/// The arguments of `torchrun`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// A Python with torch 2.11.0 [default: target/bench-venv]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

/// Runs everything and reports differences between dtrain and torchrun. The exit code is then 1.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let programs = match find_programs(workspace, signals, &args.set, None)? {
        Ok(programs) => programs,
        Err(code) => return Ok(code),
    };
    let python = match &args.python {
        // Scripts run in their own folder: the path must be absolute.
        Some(python) => std::path::absolute(python)
            .with_context(|| format!("cannot resolve --python {}", python.display()))?,
        None => environment(workspace, signals, "bench-venv", &format!("{SOURCES}/requirements.txt"))?,
    };
    let work = workspace.target().join("torchrun");
    create_empty(&work)?;
    let out = work.join("results.json");
    let launches = Launches { signals, sources: workspace.root().join(SOURCES), programs, python, work };
    let machine = Machine::describe(Some(workspace), Value::Null)?;
    let mut report = Report::new("cargo xtask torchrun".to_owned(), machine);
    let mut group = Group::new("dtrain and torchrun: bit-equal results");
    launches.compare_script(&mut group.rows)?;
    group.rows.push(comparison_row("torchrun dtrain-worker recipe", launches.compare_worker())?);
    report.groups.push(group);
    report.publish(&out)
}

/// Paths for the launches.
struct Launches<'a> {
    signals: &'a Signals,
    /// The folder with the script.
    sources: PathBuf,
    /// The folder of the built programs.
    programs: PathBuf,
    python: PathBuf,
    /// The folder for outputs of runs; after a failure, they show the reason.
    work: PathBuf,
}

impl Launches<'_> {
    /// Runs the script with torchrun and in every way that dtrain supports: a row for each.
    fn compare_script(&self, rows: &mut Vec<Row>) -> Result<()> {
        let file = format!("{MODULE}.py");
        let theirs = self.torchrun_command(&[OsStr::new(&file)])?;
        let theirs = self.run_script("torchrun script", theirs)?;
        eprintln!("{}", summarize(&theirs));
        let python = self.python.as_os_str();
        let forms: [(&str, Vec<&OsStr>); 3] = [
            ("dtrain launch -- python script.py", vec!["--".as_ref(), python, file.as_ref()]),
            ("dtrain launch script.py", vec![file.as_ref()]),
            ("dtrain launch -m script", vec!["-m".as_ref(), MODULE.as_ref()]),
        ];
        for (name, program) in forms {
            let mut words: Vec<OsString> = vec![self.programs.join("dtrain").into()];
            words.extend(["launch", "--nproc", &RANKS.to_string()].map(OsString::from));
            words.extend(program.into_iter().map(OsStr::to_owned));
            let ours = self.run_script(name, words);
            rows.push(comparison_row(name, ours.map(|ours| difference("rank", 0, &ours, &theirs)))?);
        }
        Ok(())
    }

    /// Runs the demo's first steps with both. Returns the difference.
    fn compare_worker(&self) -> Result<Option<String>> {
        let worker = self.programs.join("dtrain-worker");
        let recipe = |run: &Path| -> Vec<OsString> {
            let steps = format!("train.steps={RECIPE_STEPS}");
            // The demo's default warm-up of an epoch is too long.
            let warmup = "optim.schedule.warmup=2 steps";
            let words = ["demo", "--set", &steps, "--set", warmup, "--run-dir"];
            words.into_iter().map(OsString::from).chain([run.into()]).collect()
        };
        let run_dirs = ["ours", "theirs"].map(|name| self.work.join(name));
        let mut ours: Vec<OsString> = vec![self.programs.join("dtrain").into()];
        ours.extend(["launch", "--nproc", &RANKS.to_string()].map(OsString::from));
        ours.extend(recipe(&run_dirs[0]));
        let mut theirs = self.torchrun_command(&["--no-python".as_ref(), worker.as_os_str()])?;
        theirs.extend(recipe(&run_dirs[1]));
        self.launch("dtrain launch recipe", ours)?;
        self.launch("torchrun dtrain-worker recipe", theirs)?;
        let [ours, theirs] = run_dirs.map(|run| -> Result<Vec<Value>> {
            let path = run.join("metrics.jsonl");
            read_losses(&read(&path)?, RECIPE_STEPS).with_context(|| path.display().to_string())
        });
        let (ours, theirs) = (ours?, theirs?);
        if let Some(last) = theirs.last() {
            eprintln!("loss of the demo after {RECIPE_STEPS} steps under torchrun: {last}");
        }
        Ok(difference("loss of step", 1, &ours, &theirs))
    }

    fn torchrun_command(&self, program: &[&OsStr]) -> Result<Vec<OsString>> {
        let mut words = torchrun(&self.python, &RANKS.to_string())?;
        words.extend(program.iter().map(|word| (*word).to_owned()));
        Ok(words)
    }

    /// Launches the script; its argument follows `words`.
    fn run_script(&self, name: &str, mut words: Vec<OsString>) -> Result<Vec<Value>> {
        words.extend(["--steps".into(), SCRIPT_STEPS.to_string().into()]);
        let stdout = self.launch(name, words)?;
        parse_answers(&stdout, RANKS).with_context(|| format!("invalid output of {name}"))
    }

    /// Runs a launch to its end and returns its standard output.
    fn launch(&self, name: &str, words: Vec<OsString>) -> Result<String> {
        eprintln!("{name}");
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .current_dir(&self.sources)
            .env("PATH", self.path()?)
            // OMP_NUM_THREADS as torchrun sets it; loopback, because Gloo otherwise resolves the host's name.
            .env("OMP_NUM_THREADS", "1")
            .env("GLOO_SOCKET_IFNAME", "lo")
            .env("CUDA_VISIBLE_DEVICES", "");
        for outer in
            ["RANK", "WORLD_SIZE", "RUST_LOG", "DTRAIN_WORKER", "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHON_EXEC"]
        {
            command.env_remove(outer);
        }
        Ok(run_to_end(self.signals, &mut command)?.expect(0)?.stdout)
    }

    /// Returns a PATH that begins with this Python's folder.
    fn path(&self) -> Result<OsString> {
        let folder = self.python.parent().unwrap_or(Path::new("")).to_owned();
        let inherited = env::var_os("PATH").unwrap_or_default();
        let folders = [folder].into_iter().chain(env::split_paths(&inherited));
        env::join_paths(folders).context("cannot add the folder of --python to PATH")
    }
}

/// Creates the row of a comparison. A failed run is a failed row; a signal ends everything.
fn comparison_row(name: &str, outcome: Result<Option<String>>) -> Result<Row> {
    let row = Row::new(name);
    Ok(match outcome {
        Ok(None) => row.with_verdict(Verdict::Passed, "the same"),
        Ok(Some(difference)) => row.with_verdict(Verdict::Failed, difference),
        Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Err(error),
        Err(error) => row.with_verdict(Verdict::Failed, format!("{error:#}")),
    })
}

/// Returns a line with the results of all ranks.
fn summarize(answers: &[Value]) -> String {
    let losses: Vec<String> = answers.iter().map(|answer| answer["loss"].to_string()).collect();
    let parameters = answers.first().map_or(&Value::Null, |answer| &answer["parameters"]);
    format!("losses {}, parameters {parameters}", losses.join(" and "))
}
