//! Folders of programs, and output folders of the lab's commands.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use dtrain_common::run_dir::RunDir;
pub(crate) use xtask::files::{create, create_empty, write};
use xtask::process::Signals;
use xtask::setup::{self, Ready, SetArgs};
use xtask::workspace::Workspace;

/// Returns the folder of dtrain and its worker: the user's, or that of a new release build. The inner error
/// is cargo's exit code.
pub(crate) fn find_programs(
    workspace: &Workspace,
    signals: &Signals,
    set: &SetArgs,
    named: Option<&Path>,
) -> Result<Result<PathBuf, u8>> {
    if let Some(folder) = named {
        return Ok(Ok(canonical("--bin-dir", folder)?));
    }
    build_programs(workspace, signals, &setup::run(workspace, signals, &set.clone().into())?)
}

fn build_programs(workspace: &Workspace, signals: &Signals, ready: &Ready) -> Result<Result<PathBuf, u8>> {
    match ready.build_dtrain(workspace, signals, "release")? {
        0 => Ok(Ok(ready.build_folder(workspace)?.join("release"))),
        code => {
            eprintln!("cannot build dtrain, see cargo's output");
            Ok(Err(code))
        }
    }
}

/// As [`find_programs`], with the fake GPUs, and the example that runs exported programs.
pub(crate) fn find_fake_programs(
    workspace: &Workspace,
    signals: &Signals,
    set: &SetArgs,
    named: Option<&Path>,
) -> Result<Result<PathBuf, u8>> {
    if named.is_some() {
        return find_programs(workspace, signals, set, named);
    }
    let ready = setup::run(workspace, signals, &set.clone().into())?;
    let found = build_programs(workspace, signals, &ready)?;
    if found.is_err() {
        return Ok(found);
    }
    let mut build = ready.cargo(workspace);
    build.args(["build", "--release", "--package", "dtrain-fake-gpu", "--bin", "fake-gpu"]);
    build.args(["--package", "dtrain-models", "--example", "exported"]);
    let code = signals.run(&mut build)?.code;
    signals.check()?;
    Ok(if code == 0 { found } else { Err(code) })
}

/// Returns the absolute path of the file or folder that the user names by this flag.
pub(crate) fn canonical(flag: &str, path: &Path) -> Result<PathBuf> {
    path.canonicalize().with_context(|| format!("cannot open {flag} {}", path.display()))
}

/// Creates a folder of this process in `parent`, and removes those of processes that have ended.
pub(crate) fn create_own(parent: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let has_ended = |pid: &str| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists();
        if entry.file_name().to_str().is_some_and(has_ended) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let own = parent.join(std::process::id().to_string());
    create_empty(&own)?;
    Ok(own)
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The files of a run directory that the lab reads, as text.
#[derive(Debug)]
pub(crate) struct RunFiles {
    pub(crate) metrics: String,
    pub(crate) result: String,
    pub(crate) plan: String,
}

impl RunFiles {
    pub(crate) fn read(run: &RunDir) -> Result<Self> {
        Ok(Self { metrics: read(&run.metrics())?, result: read(&run.result())?, plan: read(&run.plan())? })
    }
}
