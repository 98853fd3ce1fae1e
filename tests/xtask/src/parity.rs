//! `parity`: makes the reference files of the comparison with PyTorch anew.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::Signals;
use crate::setup::{Problem, explain, find_python};
use crate::workspace::Workspace;

/// In tests/parity: the pinned packages, the scripts and what they make.
const REQUIREMENTS: &str = "tests/parity/requirements.txt";
const SCRIPTS: [&str; 4] = [
    "tests/parity/make_reference.py",
    "tests/parity/make_schedules.py",
    "tests/parity/make_models.py",
    "tests/parity/make_ddp.py",
];
const REFERENCE: &str = "tests/parity/reference";

/// Runs the scripts with their packages until one fails, and returns its exit code.
pub(crate) fn run(workspace: &Workspace, signals: &Signals) -> Result<u8> {
    let folder = workspace.target().join("parity-venv");
    let python = folder.join("bin/python");
    let pinned = workspace.root().join(REQUIREMENTS);
    let pins = fs::read_to_string(&pinned).with_context(|| format!("cannot read {}", pinned.display()))?;
    // A copy of the pins, written last, says that the environment is whole.
    let stamp = folder.join("dtrain-requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == pins) {
        eprintln!("PyTorch: in {}", workspace.show(&folder));
    } else {
        eprintln!(
            "installing PyTorch and torchvision into {}",
            workspace.show(&folder)
        );
        make_environment(signals, &folder)?;
        install(signals, &python, &pinned, &folder)?;
        fs::write(&stamp, &pins).map_err(|error| Problem::write(&stamp, error))?;
    }
    for script in SCRIPTS {
        let mut python = Command::new(&python);
        python
            .current_dir(workspace.root())
            .args([script, "--out", REFERENCE]);
        let code = signals.run(&mut python)?.code;
        signals.check()?;
        if code != 0 {
            eprintln!("{script} has failed");
            return Ok(code);
        }
    }
    eprintln!("the reference files in {REFERENCE} are made anew; git shows what has changed");
    Ok(0)
}

fn make_environment(signals: &Signals, folder: &Path) -> Result<()> {
    let mut venv = Command::new(find_python()?);
    let finished = signals.run_noting_errors(venv.args(["-m", "venv", "--clear"]).arg(folder))?;
    signals.check()?;
    // Debian's Python has venv, but not the pip to put into one.
    if !finished.success() || !folder.join("bin/pip").exists() {
        return Err(Problem::NoVenv.into());
    }
    Ok(())
}

fn install(signals: &Signals, python: &Path, pinned: &Path, folder: &Path) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--requirement",
    ])
    .arg(pinned);
    let finished = signals.run_noting_errors(&mut pip)?;
    signals.check()?;
    if finished.success() {
        return Ok(());
    }
    let name = pinned
        .file_name()
        .unwrap_or(OsStr::new(REQUIREMENTS))
        .to_string_lossy();
    Err(explain(
        &finished.stderr,
        &format!("what {name} names"),
        finished.code,
        folder,
    )
    .into())
}
