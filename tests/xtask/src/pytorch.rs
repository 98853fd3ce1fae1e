//! A Python with CPU PyTorch for tests, from libtorch's wheel: `target/pytorch/bin/python`.
//!
//! It fetches only some small packages; a normal PyTorch installation takes 5 GB with CUDA's libraries.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::files::{create, write};
use crate::process::Signals;
use crate::python::install;
use crate::setup::Problem;
use crate::workspace::Workspace;

const PINS: &str = include_str!("../requirements/pytorch.txt");

/// Creates the Python, again if its pins have changed. If this machine lacks something, reports this and
/// creates none: tests that need it are then skipped, or fail if `DTRAIN_REQUIRE` names pytorch.
pub(crate) fn prepare(workspace: &Workspace, signals: &Signals, compiler: Option<&OsStr>) -> Result<()> {
    let (torch, folder) = (workspace.default_libtorch(), workspace.target().join("pytorch"));
    if !torch.join("__init__.py").is_file() {
        eprintln!(
            "no PyTorch for tests: target/libtorch has no Python files; run `cargo xtask setup --force`"
        );
        return Ok(());
    }
    let Some(python) = ["python3.11", "python3"].into_iter().find(|name| is_right(name)) else {
        eprintln!(
            "no PyTorch for tests: libtorch's wheel needs Python 3.11, which is not on PATH; install python3.11"
        );
        return Ok(());
    };
    // A copy of the pins, written last, marks the folder as complete.
    let stamp = folder.join("dtrain-requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == PINS) {
        return Ok(());
    }
    eprintln!("installing PyTorch for tests in {}", workspace.show(&folder));
    let packages = folder.join("packages");
    let _ = fs::remove_dir_all(&folder);
    let empty = packages.join("empty");
    create(&empty)?;
    let pinned = workspace.root().join("tests/xtask/requirements/pytorch.txt");
    let flags = ["--no-deps".as_ref(), "--quiet".as_ref(), "--target".as_ref(), packages.as_os_str()];
    install(signals, python, &pinned, &packages, &flags)?;
    let compiler = std::env::var_os("CXX").or_else(|| compiler.map(Into::into));
    let mut prepare = Command::new(python);
    prepare.args(["-c", include_str!("pytorch/prepare.py")]).arg(&torch).arg(&empty);
    prepare.arg(compiler.unwrap_or_else(|| "c++".into()));
    ensure!(signals.run(&mut prepare)?.success(), "cannot prepare PyTorch for tests");
    write(&packages.join("sitecustomize.py"), include_str!("pytorch/sitecustomize.py"))?;
    let program = folder.join("bin/python");
    fs::create_dir_all(folder.join("bin")).map_err(|error| Problem::write(&folder, error))?;
    write(&program, script(python, &packages, &workspace.libtorch()))?;
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", program.display()))?;
    // libtorch's wheel is unpacked without bytecode, and some tests let Python write none: each import would compile
    // PyTorch again, for 2.5 s.
    let mut import = Command::new(&program);
    import.args(["-c", "import torch, torch._dynamo, torch.distributed, torch.export"]);
    let imported = signals.run(import.env_remove("PYTHONDONTWRITEBYTECODE"))?;
    ensure!(imported.success(), "cannot import PyTorch for tests with {}", program.display());
    write(&stamp, PINS)
}

fn is_right(python: &str) -> bool {
    let mut command = Command::new(python);
    command.args(["-c", "import sys; sys.exit(sys.version_info[:2] != (3, 11))"]);
    let status = command.stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Returns a script that runs Python with the packages and PyTorch.
fn script(python: &str, packages: &Path, libtorch: &Path) -> String {
    format!(
        "#!/bin/sh\nPYTHONPATH='{}:{}'\"${{PYTHONPATH:+:$PYTHONPATH}}\" exec {python} \"$@\"\n",
        packages.display(),
        libtorch.display()
    )
}
