//! Installs the wheel into a new Python environment and trains there, as its user would.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{create_empty, find_wheel, tools::answer};
use crate::process::Signals;
use crate::setup::{self, Problem};
use crate::workspace::Workspace;

/// A training and its metrics by the Python package.
const SCRIPT: &str = "\
import dtrain
dtrain.launch('demo', nproc=1, set={'train.epochs': 2, 'data.train_samples': 192}, run_dir='by python')
metrics = dtrain.read('by python')
assert metrics['train']['step'] == [1, 2, 3, 4, 5, 6], metrics
open('by python/metrics.jsonl', 'a').write('{\"step\": 7, ')
assert dtrain.read('by python') == metrics
assert all(loss > 0 for loss in metrics['train']['loss']) and metrics['eval']['step'], metrics
";

/// Installs the wheel beside the libtorch of set-up, and runs the demo, the Python package and a module.
pub(super) fn run(workspace: &Workspace, signals: &Signals, output: &Path) -> Result<()> {
    let wheel = find_wheel(output)?;
    let python = setup::find_python()?;
    // A user's folder may have a space in its name.
    let folder = output.join("a try");
    create_empty(&folder)?;
    let environment = folder.join("env");
    answer(Command::new(&python).args(["-m", "venv", "--without-pip"]).arg(&environment))?;
    // pip's torch and its CUDA libraries are 5 GB; these are the files of the same wheels.
    let site = site_packages(&environment)?;
    for package in ["torch", "nvidia"] {
        let from = workspace.libtorch().join(package);
        if from.is_dir() {
            symlink(&from, site.join(package)).map_err(|error| Problem::write(&site, error))?;
        }
    }
    let begun = Instant::now();
    let own = environment.join("bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "--python"]).arg(&own);
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]).arg(&wheel);
    answer(&mut pip)?;
    let mut demo = Command::new(environment.join("bin/dtrain"));
    demo.args(["launch", "--run-dir", "a demo", "demo", "--set", "train.epochs=2"]);
    let mut module = Command::new(&own);
    module.args(["-m", "dtrain", "--version"]);
    let mut script = Command::new(&own);
    script.args(["-c", SCRIPT]);
    for (number, command) in [demo, module, script].iter_mut().enumerate() {
        command
            .current_dir(&folder)
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("DTRAIN_WORKER")
            .env_remove("PYTHONPATH")
            .env_remove("PYTHON_EXEC")
            .env_remove("CONDA_PREFIX")
            .env_remove("LIBTORCH")
            .env_remove("VIRTUAL_ENV");
        let finished = signals.run(command)?;
        signals.check()?;
        ensure!(
            finished.success(),
            "{command:?} ended with exit code {} in {}",
            finished.code,
            folder.display()
        );
        if number == 0 {
            eprintln!("from pip install to the demo's last line: {:.1} s", begun.elapsed().as_secs_f64());
        }
    }
    fs::remove_dir_all(&folder).map_err(|error| Problem::write(&folder, error))?;
    eprintln!("wheel tried: demo, `python -m dtrain`, `dtrain.launch` and `dtrain.read`");
    Ok(())
}

fn site_packages(environment: &Path) -> Result<PathBuf> {
    let lib = environment.join("lib");
    let versions = fs::read_dir(&lib).with_context(|| format!("cannot read {}", lib.display()))?;
    let sites = versions.flatten().map(|version| version.path().join("site-packages"));
    sites
        .into_iter()
        .find(|site| site.is_dir())
        .with_context(|| format!("no site-packages in {}", lib.display()))
}
