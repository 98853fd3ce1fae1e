//! `gpu-faults`: GPUs that fail at many moments of short trainings, on machines of fake GPUs.
//!
//! The launch must end in time, with the right code and cause, and without a crash; a second launch without the fault must train
//! to the end.

mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dtrain_common::result::RunResult;
use dtrain_test_kit::faults::Random;
use xtask::process::Signals;
use xtask::setup::SetArgs;
use xtask::workspace::Workspace;

use self::table::{End, KINDS, Kind};
use crate::commands::{FinishedCommand, run_to_end};
use crate::files::{create_empty, create_own, find_fake_programs};

/// The longest launch: the longest time-out of a kind, the stacks of a hang, and a start on a busy machine.
const LONGEST: Duration = Duration::from_secs(90);

/// The arguments of `gpu-faults`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Moments of each kind; the first of each is always the same
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    moments: u64,
    /// Kinds whose names contain this text; repeatable [default: all]
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Trainings at once
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    jobs: u64,
    /// Seed of the moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder of built programs [default: a new release build]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["cpu", "cuda"])]
    bin_dir: Option<PathBuf>,
}

impl Args {
    fn kinds(&self) -> impl Iterator<Item = &'static Kind> {
        let is_named = |kind: &&Kind| self.only.iter().any(|text| kind.name.contains(text));
        KINDS.iter().filter(move |kind| self.only.is_empty() || is_named(kind))
    }
}

/// A kind with the number of the call that fails.
type Case = (Kind, u64);

/// Runs all cases and prints those that failed, and a table. The exit code is 1 if a case failed.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let cases = cases(args);
    ensure!(
        !cases.is_empty(),
        "--only {}: no kind of fault has this text in its name",
        args.only.join(" --only ")
    );
    let programs = match find_fake_programs(workspace, signals, &args.set, args.bin_dir.as_deref())? {
        Ok(programs) => programs,
        Err(code) => return Ok(code),
    };
    let folder = create_own(&workspace.target().join("gpu-faults"))?;
    let recipe = folder.join("recipe.toml");
    fs::write(&recipe, RECIPE).with_context(|| format!("cannot write {}", recipe.display()))?;
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(number) else { break };
                    eprintln!("{} of {}: {}, call {}", number + 1, cases.len(), case.0.name, case.1);
                    let own = folder.join(format!("{}-{}", case.0.name.replace([' ', ','], "-"), case.1));
                    if let Err(error) = check(signals, &programs, (&recipe, &own), case) {
                        eprintln!("FAILED, files kept in {}: {error:#}", own.display());
                        failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(case.0.name);
                    } else if let Err(error) = fs::remove_dir_all(&own) {
                        eprintln!("cannot remove {}: {error}", own.display());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!("| Fault | Moments | Failed |\n|---|---|---|");
    for kind in args.kinds() {
        let all = cases.iter().filter(|(one, _)| one.name == kind.name).count();
        let failed = failures.iter().filter(|name| **name == kind.name).count();
        println!("| {} | {all} | {failed} |", kind.name);
    }
    println!("{} cases, {} failed", cases.len(), failures.len());
    Ok(u8::from(!failures.is_empty()))
}

/// Returns different moments of each kind, or all of them if it has no more.
fn cases(args: &Args) -> Vec<Case> {
    let mut random = Random::new(args.seed);
    let mut cases = Vec::new();
    for kind in args.kinds() {
        let (first, last) = kind.calls;
        let mut calls: Vec<u64> = (first + 1..=last).collect();
        cases.push((*kind, first));
        for _ in 1..args.moments.min(last - first + 1) {
            let chosen = random.below(calls.len() as u64) as usize;
            cases.push((*kind, calls.swap_remove(chosen)));
        }
    }
    cases
}

const RECIPE: &str = "\
task = \"classify\"
[data]
kind = \"generated\"
classes = 4
train_samples = 96
test_samples = 16
image_size = 32
workers = 1
[model]
name = \"resnet18\"
[train]
effective_batch = 16
seed = 3
[optim]
name = \"sgd\"
lr = 0.001
momentum = 0.9
[checkpoint]
every = \"1 steps\"
[log]
every_steps = 1
";

fn check(
    signals: &Signals,
    programs: &Path,
    (recipe, own): (&Path, &Path),
    (kind, call): &Case,
) -> Result<()> {
    let fault = format!("{}:{call}:{}:{}", kind.site, kind.code, kind.ranks.1);
    create_empty(own)?;
    let begun = Instant::now();
    let ended = launch(signals, programs, (recipe, own), kind, Some(&fault))?;
    let text = format!("{fault}: {}\n{}", ended.stdout, ended.stderr);
    ensure!(begun.elapsed() < LONGEST, "it took {:?}: {text}", begun.elapsed());
    for crash in ["panicked", "SIGSEGV", "terminate called"] {
        ensure!(!text.contains(crash), "{crash}: {text}");
    }
    match kind.end {
        End::Succeeds => {
            ensure!(ended.code == 0, "exit code {}: {text}", ended.code);
            ensure!(has_fired(own)?, "no process reached the call: {text}");
        }
        End::Fails(code, words) => {
            ensure!(ended.code == code, "exit code {}, not {code}: {text}", ended.code);
            ensure!(text.contains(words), "no `{words}`: {text}");
        }
    }
    let again = launch(signals, programs, (recipe, own), kind, None)?;
    let text = format!("after {fault}: {}\n{}", again.stdout, again.stderr);
    ensure!(again.code == 0, "exit code {}: {text}", again.code);
    let path = own.join("run/result.json");
    let result: RunResult =
        serde_json::from_slice(&fs::read(&path).with_context(|| path.display().to_string())?)?;
    ensure!(result.steps == Some(kind.steps), "{:?} steps: {text}", result.steps);
    Ok(())
}

/// Returns whether a process of the launch met its fault. Processes that end write what they counted.
fn has_fired(own: &Path) -> Result<bool> {
    for entry in fs::read_dir(own)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let counted: serde_json::Value = serde_json::from_slice(&fs::read(&path)?)?;
            if counted["calls"]["[fault]"].as_u64().is_some_and(|fired| fired > 0) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn launch(
    signals: &Signals,
    programs: &Path,
    (recipe, own): (&Path, &Path),
    kind: &Kind,
    fault: Option<&str>,
) -> Result<FinishedCommand> {
    let id = format!("faults-{}-{}", std::process::id(), own.file_name().unwrap_or_default().display());
    let (gpus, steps) = (kind.ranks.0.to_string(), format!("train.steps={}", kind.steps));
    let mut command = Command::new(programs.join("fake-gpu"));
    command.args(["--gpus", &gpus, "--"]).arg(programs.join("dtrain")).args(["launch", "--nproc", &gpus]);
    command.arg("--run-dir").arg(own.join("run")).args(["--set", &steps]);
    command.env_remove("CUDA_VISIBLE_DEVICES").env("OMP_NUM_THREADS", "1").env("FAKE_GPU_ID", &id);
    if let Some(fault) = fault {
        command.args(kind.flags).env("FAKE_GPU_FAULT", fault).env("FAKE_GPU_COUNTS", own.join("counts"));
    }
    let ended = run_to_end(signals, command.arg(recipe));
    let memory = format!("/dev/shm/fake-gpu-{}-{id}", rustix::process::getuid().as_raw());
    // A launch that ended early has made none.
    let _ = fs::remove_dir_all(memory);
    ended
}
