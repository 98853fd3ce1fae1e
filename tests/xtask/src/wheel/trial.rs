//! Installs the wheel into a new Python environment and trains there, as its user would.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::tools::answer;
use crate::files::create_empty;
use crate::process::Signals;
use crate::setup::{self, Problem};
use crate::workspace::Workspace;

/// A small network: that of the demo learns in the demo of the build.
const SMALL: [(&str, &str); 5] = [
    ("model.name", "\"vit\""),
    ("model.width", "16"),
    ("model.depth", "1"),
    ("model.heads", "2"),
    ("model.patch", "8"),
];

/// A training and its metrics by the Python package.
const SCRIPT: &str = "\
import dtrain
dtrain.launch('demo', nproc=1, set={'train.epochs': 2, 'data.train_samples': 192, **SMALL}, run_dir='by python')
metrics = dtrain.read('by python')
assert metrics['train']['step'] == [1, 2, 3, 4, 5, 6], metrics
open('by python/metrics.jsonl', 'a').write('{\"step\": 7, ')
assert dtrain.read('by python') == metrics
assert all(loss > 0 for loss in metrics['train']['loss']) and metrics['eval']['step'], metrics
";

/// Installs the wheel beside the libtorch of set-up, and runs the demo, the Python package and a module.
pub(super) fn run(workspace: &Workspace, signals: &Signals, wheel: &Path) -> Result<()> {
    let python = setup::find_python()?;
    // A user's folder may have a space in its name.
    let folder = wheel.with_file_name("a try");
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
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]).arg(wheel);
    answer(&mut pip)?;
    let mut demo = Command::new(environment.join("bin/dtrain"));
    demo.args([
        "launch",
        "--run-dir",
        "a demo",
        "demo",
        "--set=train.epochs=2",
        "--set=data.train_samples=384",
    ]);
    demo.args(SMALL.map(|(key, value)| format!("--set={key}={value}")));
    let mut script = Command::new(&own);
    let small = SMALL.map(|(key, value)| format!("'{key}': {value}")).join(", ");
    script.args(["-c", &format!("SMALL = {{{small}}}\n{SCRIPT}")]);
    for (number, command) in [demo, script].iter_mut().enumerate() {
        let finished = signals.run(alone(command).current_dir(&folder))?;
        signals.check()?;
        ensure!(
            finished.success(),
            "{command:?} ended with exit code {} in {}",
            finished.code,
            folder.display()
        );
        if number == 0 {
            eprintln!(
                "from pip install to the last line of a short demo: {:.1} s",
                begun.elapsed().as_secs_f64()
            );
        }
    }
    for file in ["man/man1/dtrain-launch.1", "bash-completion/completions/dtrain"] {
        let file = environment.join("share").join(file);
        ensure!(file.is_file(), "{} is not installed", file.display());
    }
    let version = answer(alone(Command::new(&own).args(["-m", "dtrain", "--version"])))?;
    let lib = site.join("dtrain/../torch/lib");
    ensure!(
        version.contains(&format!(" in {}\n", lib.display())),
        "the trainer loads another libtorch: {version}"
    );
    without_pytorch(&folder, &site)?;
    fs::remove_dir_all(&folder).map_err(|error| Problem::write(&folder, error))?;
    eprintln!(
        "wheel tried: demo, `python -m dtrain`, `dtrain.launch`, `dtrain.read`, and a start without PyTorch"
    );
    Ok(())
}

/// Takes PyTorch away: dtrain names the command that installs it.
fn without_pytorch(folder: &Path, site: &Path) -> Result<()> {
    let torch = site.join("torch");
    fs::remove_file(&torch).map_err(|error| Problem::write(&torch, error))?;
    let mut demo = Command::new("env/bin/dtrain");
    let output = alone(demo.args(["launch", "--run-dir", "none", "demo"]).current_dir(folder)).output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(2)
            && printed.contains("has no PyTorch")
            && printed.contains("-m pip install"),
        "without PyTorch, `dtrain launch demo` ended with {} and printed:\n{printed}",
        output.status
    );
    Ok(())
}

/// Leaves out the variables that name other programs and libraries.
fn alone(command: &mut Command) -> &mut Command {
    [
        "LD_LIBRARY_PATH",
        "LIBTORCH",
        "DTRAIN_WORKER",
        "PYTHONPATH",
        "PYTHON_EXEC",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
    ]
    .into_iter()
    .fold(command, |command, name| command.env_remove(name))
}

fn site_packages(environment: &Path) -> Result<PathBuf> {
    let lib = environment.join("lib");
    let versions = fs::read_dir(&lib).with_context(|| format!("cannot read {}", lib.display()))?;
    let mut sites = versions.flatten().map(|version| version.path().join("site-packages"));
    sites.find(|site| site.is_dir()).with_context(|| format!("no site-packages in {}", lib.display()))
}
