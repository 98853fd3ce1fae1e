//! The suite's programs and files, and how it starts programs.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use dtrain_common::env::{DTRAIN_WORKER, WorkerEnv};
use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::no_values::NO_VALUES;
use serde_json::Value;

use super::finding::Finding;
use super::proof::{Kind, Proofs};
use crate::commands::{FinishedCommand, LIMIT, POLL_INTERVAL, RunningCommand};
use crate::files::{self, read};
use crate::python::free_port;
use xtask::metrics;
use xtask::process::Signals;

const LD_LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// The environment of a suite's run.
#[derive(Debug)]
pub(super) struct Suite<'a> {
    pub(super) signals: &'a Signals,
    /// The folder with dtrain, dtrain-worker, conformance-rank and gpu-rank.
    pub(super) programs: PathBuf,
    /// The folder with the recipes and the PyTorch programs of the benchmarks.
    pub(super) bench: PathBuf,
    /// The folder with PyTorch's reference results.
    pub(super) reference: PathBuf,
    /// libtorch's libraries, if the programs do not find them themselves.
    pub(super) libraries: Option<PathBuf>,
    /// A Python with torch, for the benchmarks.
    pub(super) python: Option<PathBuf>,
    /// The folder for the suite's files.
    pub(super) work: PathBuf,
    /// The number of GPUs to use.
    pub(super) gpus: usize,
    /// Their names for CUDA_VISIBLE_DEVICES.
    pub(super) devices: Vec<String>,
    /// Whether these are fake GPUs: then comparisons of values and speeds are skipped.
    pub(super) is_fake: bool,
    /// Rounds of a benchmark.
    pub(super) rounds: usize,
    /// The deadline of everything, if there is a limit.
    pub(super) deadline: Cell<Option<Instant>>,
    /// The commands that the current check has started.
    pub(super) commands: RefCell<Vec<String>>,
    /// What the current check's processes computed on.
    pub(super) proofs: Proofs,
    /// Commands that run beside the checks.
    pub(super) background: RefCell<Vec<RunningCommand>>,
}

/// The results of a training.
#[derive(Debug)]
pub(super) struct Trained {
    /// Standard error of the launcher or of rank 0.
    pub(super) stderr: String,
    /// The lines of steps in metrics.jsonl.
    pub(super) steps: Vec<Value>,
    /// The content of result.json.
    pub(super) result: Value,
}

impl Trained {
    /// Returns a figure of every step.
    pub(super) fn per_step(&self, key: &str) -> Result<Vec<f64>> {
        let of = |step: &Value| {
            // metrics.jsonl has null for a loss of NaN or infinity.
            match &step[key] {
                Value::Null => Some(f64::NAN),
                value => value.as_f64(),
            }
        };
        let all: Option<Vec<f64>> = self.steps.iter().map(of).collect();
        all.with_context(|| format!("metrics.jsonl has steps without {key}"))
    }

    /// Reads the files of a run.
    pub(super) fn read(run: &RunDir, stderr: String) -> Result<Self> {
        Ok(Self {
            stderr,
            steps: metrics::steps(&read(&run.metrics())?).context("metrics.jsonl")?,
            result: serde_json::from_str(&read(&run.result())?)?,
        })
    }
}

/// A training to run.
#[derive(Debug, Clone)]
pub(super) struct Training<'a> {
    /// The name of its folder, unique in the suite.
    pub(super) name: &'a str,
    /// The recipe's text.
    pub(super) recipe: &'a str,
    pub(super) ranks: usize,
    pub(super) sets: &'a [&'a str],
    /// Additional environment variables.
    pub(super) vars: &'a [(&'a str, &'a str)],
}

impl Suite<'_> {
    /// Returns a command of one of the suite's programs, without variables of an outer run.
    pub(super) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        for (name, _) in WorkerEnv::single().vars() {
            command.env_remove(name);
        }
        command
            .env_remove("RUST_LOG")
            // A backtrace would hide the message of a panic.
            .env("RUST_BACKTRACE", "0")
            // The programs keep a user's setting, and then cannot set a limit.
            .env_remove("PYTORCH_ALLOC_CONF")
            .env_remove("PYTORCH_CUDA_ALLOC_CONF")
            .env(DTRAIN_WORKER, self.programs.join("dtrain-worker"))
            .current_dir(&self.work)
            .stdin(Stdio::null());
        if let Some(libraries) = &self.libraries {
            let others = std::env::var_os(LD_LIBRARY_PATH);
            command.env(LD_LIBRARY_PATH, before(libraries, others.as_deref()));
        }
        command
    }

    /// Judges a check that compares values, and what else must `hold`. On fake GPUs, whose values mean nothing, it is
    /// skipped unless something else is wrong.
    pub(super) fn judged(&self, holds: bool, values_agree: bool, note: impl Into<String>) -> Finding {
        match self.is_fake && holds {
            true => Finding::skipped(format!("{NO_VALUES}: {}", note.into())),
            false => Finding::judged(holds && values_agree, note),
        }
    }

    /// Returns whether the time of the present checks is over.
    pub(super) fn is_late(&self) -> bool {
        self.deadline.get().is_some_and(|deadline| Instant::now() > deadline)
    }

    /// Writes a file into the suite's folder.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.work.join(name);
        files::write(&path, text)?;
        Ok(path)
    }

    /// Runs a command to its end.
    pub(super) fn run(&self, command: &mut Command) -> Result<FinishedCommand> {
        let mut ended = self.run_all(vec![command])?;
        ended.pop().context("one command has one result")
    }

    /// Runs commands at the same time until all have ended.
    pub(super) fn run_all(&self, commands: Vec<&mut Command>) -> Result<Vec<FinishedCommand>> {
        let begun = Instant::now();
        let started = commands.into_iter().map(|command| self.start(command)).collect::<Result<Vec<_>>>()?;
        started.into_iter().map(|started| started.wait(self.signals, begun)).collect()
    }

    /// Starts a command; dropping it kills the command.
    pub(super) fn start(&self, command: &mut Command) -> Result<RunningCommand> {
        self.signals.check()?;
        let command_line = command_line(command);
        self.commands.borrow_mut().push(command_line.clone());
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command_line}"))?;
        Ok(RunningCommand::new(child, command_line, self.deadline.get()))
    }

    /// Trains on GPUs, and expects success. If there are more ranks than GPUs, starts ranks without the launcher,
    /// each as if on its machine: NCCL refuses two ranks of one host on the same GPU.
    pub(super) fn train(&self, training: &Training<'_>) -> Result<Trained> {
        self.train_on(training, Kind::Gpu)
    }

    /// Trains on devices of this kind, and expects success.
    pub(super) fn train_on(&self, training: &Training<'_>, kind: Kind) -> Result<Trained> {
        let ended = self.try_training(training)?.expect(0)?;
        self.proofs.add_training(&ended.stderr, training.ranks, kind)?;
        Trained::read(&self.run_dir(training.name), ended.stderr)
    }

    /// Trains; returns the end of the launcher, or of the first rank that failed.
    pub(super) fn try_training(&self, training: &Training<'_>) -> Result<FinishedCommand> {
        let recipe = self.write(&format!("{}.toml", training.name), training.recipe)?;
        if training.ranks <= self.gpus {
            return self.run(&mut self.launch(training, &recipe));
        }
        let mut ranks = self.ranks(training, &recipe)?;
        let ended = self.run_all(ranks.iter_mut().collect())?;
        let worst = ended.iter().position(|ended| ended.code != 0).unwrap_or(0);
        ended.into_iter().nth(worst).context("there is a rank")
    }

    /// Returns the launcher's command for a training.
    pub(super) fn launch(&self, training: &Training<'_>, recipe: &Path) -> Command {
        let mut command = self.program("dtrain");
        command
            .arg("launch")
            .args(["--nproc", &training.ranks.to_string()])
            .arg("--run-dir")
            .arg(self.run_dir(training.name).root());
        set(&mut command, training);
        command.arg(recipe);
        command
    }

    /// Returns the ranks of a training as commands that share the GPUs.
    pub(super) fn ranks(&self, training: &Training<'_>, recipe: &Path) -> Result<Vec<Command>> {
        let worker = |rank: usize, env: WorkerEnv| {
            let mut command = self.program("dtrain-worker");
            command.envs(env.vars()).arg("--run-dir");
            command.arg(self.run_dir(training.name).root());
            set(&mut command, training);
            self.assign_gpu(&mut command, rank);
            command.arg(recipe);
            command
        };
        let envs = envs_of_separate_hosts(training.ranks)?;
        Ok(envs.into_iter().enumerate().map(|(rank, env)| worker(rank, env)).collect())
    }

    /// Assigns a GPU to a rank; other ranks may share it.
    pub(super) fn assign_gpu(&self, command: &mut Command, rank: usize) {
        let Some(device) = self.devices.get(rank % self.devices.len().max(1)) else {
            return;
        };
        command
            .env("CUDA_VISIBLE_DEVICES", device)
            .env("NCCL_HOSTID", format!("dtrain-gpu-test-{rank}"))
            // Gloo finds an interface by the host's name, which a container may not resolve.
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("GLOO_SOCKET_IFNAME", "lo");
    }

    /// Waits for the fifth step of a started training: by then, all its GPU allocations are done. The first
    /// start with a cold disk reads gigabytes of libraries.
    ///
    /// # Errors
    /// If one of its processes ends earlier (with its last output), or after the limit.
    pub(super) fn wait_for_fifth_step(&self, name: &str, started: &mut [RunningCommand]) -> Result<()> {
        let metrics = self.run_dir(name).metrics();
        let begun = Instant::now();
        while fs::read_to_string(&metrics).map_or(0, |text| text.lines().count()) < 5 {
            self.signals.check()?;
            for started in &mut *started {
                started.expect_running()?;
            }
            ensure!(begun.elapsed() < LIMIT, "no fifth step within {} s of the start", LIMIT.as_secs());
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns the run directory of a training.
    pub(super) fn run_dir(&self, name: &str) -> RunDir {
        RunDir::new(self.work.join(name))
    }
}

/// Returns a list of folders that begins with `first`; another folder may contain the driver's library.
fn before(first: &Path, others: Option<&OsStr>) -> OsString {
    let mut all = first.as_os_str().to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

fn set(command: &mut Command, training: &Training<'_>) {
    for set in training.sets {
        command.args(["--set", set]);
    }
    command.envs(training.vars.iter().copied());
}

/// Returns environments of ranks that each seem to run on another machine.
pub(super) fn envs_of_separate_hosts(ranks: usize) -> Result<Vec<WorkerEnv>> {
    let master_port = free_port()?;
    let env = |rank| WorkerEnv {
        rank,
        group_rank: rank,
        world_size: ranks,
        group_world_size: ranks,
        master_port,
        ..WorkerEnv::single()
    };
    Ok((0..ranks).map(env).collect())
}

/// Returns the program's name and arguments, with the environment variables that distinguish ranks.
fn command_line(command: &Command) -> String {
    let distinguishing = ["RANK", "CUDA_VISIBLE_DEVICES", "NCCL_HOSTID", "DTRAIN_FAULT"];
    let vars = command.get_envs().filter_map(|(name, value)| {
        let known = distinguishing.iter().any(|variable| name == *variable);
        known.then(|| Some(format!("{}={}", name.to_string_lossy(), value?.to_string_lossy())))?
    });
    let program =
        Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    vars.chain([program]).chain(args).collect::<Vec<_>>().join(" ")
}
