//! `demo`: from a new machine to a training that demonstrably learns.

mod figures;

use std::path::Path;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::process::Signals;
use crate::setup::{self, Ready, Set, SetArgs};
use crate::workspace::Workspace;
use figures::Figures;

/// The arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Cargo profile of the build
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
    /// Epochs to train [default: 4, from the recipe]
    #[arg(long, value_name = "N")]
    epochs: Option<u32>,
}

/// Builds, trains and checks the result. Returns the exit code of the failed step.
pub fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let mut set_up = setup::Args::from(args.set.clone());
    set_up.builds = Some(args.profile.clone());
    let ready = setup::run(workspace, signals, &set_up)?;

    let code = ready.build_dtrain(workspace, signals, &args.profile)?;
    if code != 0 {
        eprintln!("demo failed: cannot build dtrain, see cargo's output");
        return Ok(code);
    }
    train(workspace, signals, &ready, &args.profile, args.epochs)
}

/// Trains with the programs built in this profile.
pub(crate) fn train(
    workspace: &Workspace,
    signals: &Signals,
    ready: &Ready,
    profile: &str,
    epochs: Option<u32>,
) -> Result<u8> {
    let programs = ready.build_folder(workspace)?.join(match profile {
        "dev" => "debug",
        other => other,
    });
    let run_dir = workspace.root().join("runs").join(format!("demo-{}", now()?));
    let started = Instant::now();
    let mut launch = launch(&programs, ready, &run_dir);
    if let Some(epochs) = epochs {
        launch.args(["--set", &format!("train.epochs={epochs}")]);
    }
    let code = signals.run(&mut launch)?.code;
    let wall = started.elapsed();
    if code != 0 {
        eprintln!("demo failed: dtrain launch ended with exit code {code}; logs: {}", run_dir.display());
        return Ok(code);
    }
    let figures = Figures::read(&run_dir)?;
    let verdict = figures.check().with_context(|| format!("unexpected results in {}", run_dir.display()));
    verdict.context("demo failed")?;
    eprintln!(
        "demo passed: {figures}, in {:.0} s; results: {}",
        wall.as_secs_f64(),
        workspace.show(&run_dir)
    );
    Ok(0)
}

/// Returns `dtrain launch demo`: on every GPU, or in two processes on the CPU if there is no GPU.
fn launch(programs: &Path, ready: &Ready, run_dir: &Path) -> Command {
    let mut launch = Command::new(programs.join("dtrain"));
    launch.arg("launch");
    if ready.set == Set::Cuda && has_gpu() {
        launch.args(["--nproc", "gpu"]);
    } else {
        launch.args(["--nproc", "2"]).env("CUDA_VISIBLE_DEVICES", "");
    }
    // Uses the worker just built, even if the user has set another one.
    launch.env_remove("DTRAIN_WORKER");
    launch.arg("--run-dir").arg(run_dir).arg("demo");
    launch
}

/// Returns whether there is a GPU that CUDA_VISIBLE_DEVICES does not hide.
fn has_gpu() -> bool {
    let visible = env::var("CUDA_VISIBLE_DEVICES").ok();
    let hidden = visible.is_some_and(|list| matches!(list.trim(), "" | "-1"));
    !hidden && (has_gpu_by_module() || has_gpu_by_tool())
}

fn has_gpu_by_module() -> bool {
    fs::read_dir("/proc/driver/nvidia/gpus").is_ok_and(|mut gpus| gpus.next().is_some())
}

/// For drivers without a kernel module on this system, as under Windows (WSL).
fn has_gpu_by_tool() -> bool {
    let output = Command::new("nvidia-smi").arg("-L").output();
    output.is_ok_and(|output| output.status.success() && output.stdout.starts_with(b"GPU "))
}

/// Returns the local time, for the run's name.
fn now() -> Result<String> {
    let output = Command::new("date").arg("+%Y%m%d-%H%M%S").output().context("cannot run date")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
