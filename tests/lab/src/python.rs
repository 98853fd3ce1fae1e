//! Python environments with pinned packages, in `target`.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::files::{read, write};
use xtask::process::Signals;
use xtask::python::install;
use xtask::setup::{Problem, find_python};
use xtask::workspace::Workspace;

/// Returns the Python of the environment `target/<name>`, which has the packages of the file of pins (path
/// from the workspace's root). Creates it with pip if it is absent or the pins have changed.
pub(crate) fn environment(
    workspace: &Workspace,
    signals: &Signals,
    name: &str,
    pins: &str,
) -> Result<PathBuf> {
    let folder = workspace.target().join(name);
    let python = folder.join("bin/python");
    let pinned = workspace.root().join(pins);
    let pins = read(&pinned)?;
    // A copy of the pins, written last, marks the environment as complete.
    let stamp = folder.join("dtrain-requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == pins) {
        eprintln!("PyTorch: {}", workspace.show(&folder));
        return Ok(python);
    }
    eprintln!("installing PyTorch and torchvision into {}", workspace.show(&folder));
    make_environment(signals, &folder)?;
    install(signals, &python, &pinned, &folder, &[])?;
    write(&stamp, pins)?;
    Ok(python)
}

/// Returns the first words of a torchrun command with this Python and `workers` workers; other flags and the
/// program follow. Sets a free port: torchrun's default is a fixed port, which may be in use.
pub(crate) fn torchrun(python: &Path, workers: &str) -> Result<Vec<OsString>> {
    let port = free_port()?;
    let mut words = vec![python.as_os_str().to_owned()];
    words.extend(
        ["-m", "torch.distributed.run", "--nproc-per-node", workers, "--master-port"].map(Into::into),
    );
    words.push(port.to_string().into());
    Ok(words)
}

/// Returns a free port of 127.0.0.1.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    Ok(listener.context("cannot find a free port on 127.0.0.1")?.port())
}

fn make_environment(signals: &Signals, folder: &Path) -> Result<()> {
    let mut venv = Command::new(find_python()?);
    let finished = signals.run_capturing_stderr(venv.args(["-m", "venv", "--clear"]).arg(folder))?;
    signals.check()?;
    // Debian's Python has venv, but lacks the pip that venv installs.
    if !finished.success() || !folder.join("bin/pip").exists() {
        return Err(Problem::NoVenv.into());
    }
    Ok(())
}
