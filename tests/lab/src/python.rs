//! Python environments with pinned packages, in `target`.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::place::read;
use xtask::process::Signals;
use xtask::python::install;
use xtask::setup::{Problem, find_python};
use xtask::workspace::Workspace;

/// The Python of the environment `target/<name>`, which holds what the file of pins names (from the workspace's root). Made,
/// and made anew where the pins have changed, with pip.
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
    // A copy of the pins, written last, says that the environment is whole.
    let stamp = folder.join("dtrain-requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == pins) {
        eprintln!("PyTorch: in {}", workspace.show(&folder));
        return Ok(python);
    }
    eprintln!("installing PyTorch and torchvision into {}", workspace.show(&folder));
    make_environment(signals, &folder)?;
    install(signals, &python, &pinned, &folder, &[])?;
    fs::write(&stamp, &pins).map_err(|error| Problem::write(&stamp, error))?;
    Ok(python)
}

/// The words that start the torchrun of this Python with so many workers; its other flags and the program follow. It is given a
/// free port: its own is always the same one, and may be taken.
pub(crate) fn torchrun(python: &Path, workers: &str) -> Result<Vec<OsString>> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .context("cannot find a free port on 127.0.0.1")?
        .port();
    let mut words = vec![python.as_os_str().to_owned()];
    words.extend(
        ["-m", "torch.distributed.run", "--nproc-per-node", workers, "--master-port"].map(Into::into),
    );
    words.push(port.to_string().into());
    Ok(words)
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
