//! `parity`: makes new reference files for the comparison with PyTorch.

use std::process::Command;

use anyhow::Result;

use crate::python::environment;
use xtask::process::Signals;
use xtask::workspace::Workspace;

/// In tests/parity: the pinned packages, the scripts and their output.
const REQUIREMENTS: &str = "tests/parity/requirements.txt";
const SCRIPTS: [&str; 12] = [
    "tests/parity/make_reference.py",
    "tests/parity/make_schedules.py",
    "tests/parity/make_models.py",
    "tests/parity/make_exported.py",
    "tests/parity/make_jpeg.py",
    "tests/parity/make_pictures.py",
    "tests/parity/make_masks.py",
    "tests/parity/make_changes.py",
    "tests/parity/make_ddp.py",
    "tests/parity/make_losses.py",
    "tests/parity/make_mix.py",
    "tests/parity/make_muon.py",
];
const REFERENCE: &str = "tests/parity/reference";

/// Runs the scripts until one fails, and returns its exit code.
pub(crate) fn run(workspace: &Workspace, signals: &Signals) -> Result<u8> {
    let python = environment(workspace, signals, "parity-venv", REQUIREMENTS)?;
    for script in SCRIPTS {
        let mut python = Command::new(&python);
        python.current_dir(workspace.root()).args([script, "--out", REFERENCE]);
        let code = signals.run(&mut python)?.code;
        signals.check()?;
        if code != 0 {
            eprintln!("{script} failed with exit code {code}");
            return Ok(code);
        }
    }
    eprintln!("wrote the reference files in {REFERENCE}; `git diff` shows changes");
    Ok(0)
}
