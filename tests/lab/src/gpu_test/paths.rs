//! Finds the suite's programs, libraries and Python.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::checks::Part;
use super::scope::Scope;
use super::{Args, TORCH, pack};
use crate::files::canonical;
use crate::python::environment;
use xtask::process::{Interrupted, Signals};
use xtask::workspace::Workspace;

/// Prints the library folder of Python's torch, and its version.
const TORCH_LIBRARIES: &str =
    "import os, torch; print(os.path.join(os.path.dirname(torch.__file__), 'lib')); print(torch.__version__)";

/// Paths in a pack or in the workspace.
pub(super) struct Paths {
    pub(super) programs: PathBuf,
    pub(super) bench: PathBuf,
    pub(super) reference: PathBuf,
    pub(super) libraries: Option<PathBuf>,
    pub(super) python: Option<PathBuf>,
    /// The folder for the suite's files.
    pub(super) own: PathBuf,
}

impl Paths {
    /// Finds or builds everything. The inner error is cargo's exit code if the build fails.
    pub(super) fn find(signals: &Signals, scope: &Scope<'_>) -> Result<Result<Self, u8>> {
        let args = scope.args;
        let python = python(args)?;
        let torch = python.as_ref().and_then(|(_, libraries)| libraries.clone());
        let named = args.libtorch.as_ref().map(|folder| canonical("--libtorch", folder)).transpose()?;
        let python = python.map(|(python, _)| python);
        if let Some(pack) = &args.pack {
            let pack = canonical("--pack", pack)?;
            return Ok(Ok(Self {
                programs: pack.join(pack::BIN),
                bench: pack.join(pack::BENCH),
                reference: pack.join(pack::REFERENCE),
                libraries: named.or(torch),
                python,
                own: pack,
            }));
        }
        let workspace = Workspace::find()?;
        let programs = match pack::build(&workspace, signals, &args.set)? {
            Ok(programs) => programs,
            Err(code) => return Ok(Err(code)),
        };
        let python = match python {
            None if scope.wants_part(Part::Benchmarks) => peer(&workspace, signals)?,
            other => other,
        };
        Ok(Ok(Self {
            programs,
            bench: workspace.root().join("tests/bench"),
            reference: workspace.root().join("tests/parity/reference"),
            // These programs find set-up's libtorch without help.
            libraries: named,
            python,
            own: workspace.target(),
        }))
    }
}

/// Sets up a Python with PyTorch for the benchmarks. `None` if this fails: the other checks can still run.
fn peer(workspace: &Workspace, signals: &Signals) -> Result<Option<PathBuf>> {
    let requirements = "tests/bench/requirements.txt";
    match environment(workspace, signals, "bench-venv", requirements) {
        Ok(python) => Ok(Some(python)),
        Err(error) if error.downcast_ref::<Interrupted>().is_some() => Err(error),
        Err(error) => {
            eprintln!("warning: skipping comparisons with PyTorch: {error:#}");
            Ok(None)
        }
    }
}

/// Returns a Python, and its torch's libraries if the version is right. Only a named Python must have torch.
fn python(args: &Args) -> Result<Option<(PathBuf, Option<PathBuf>)>> {
    let (python, named) = match &args.python {
        Some(python) => (python.clone(), true),
        None => (PathBuf::from("python3"), false),
    };
    let output = Command::new(&python).args(["-c", TORCH_LIBRARIES]).output();
    let stdout = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ if named => anyhow::bail!("{} cannot import torch: install torch {TORCH} there", python.display()),
        _ => return Ok(None),
    };
    Ok(Some((python, libraries(&stdout))))
}

/// Returns the folder from Python's output, if its torch has the right version.
fn libraries(stdout: &str) -> Option<PathBuf> {
    let mut lines = stdout.lines();
    let (folder, version) = (lines.next()?, lines.next()?);
    (version.split('+').next() == Some(TORCH)).then(|| PathBuf::from(folder))
}
