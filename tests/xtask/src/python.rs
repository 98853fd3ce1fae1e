//! Installs pinned packages with pip.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::Signals;
use crate::setup::explain;

/// Installs the packages of the file of pins into `folder` with the pip of `python` and further `flags`.
pub fn install(
    signals: &Signals,
    python: impl AsRef<OsStr>,
    pinned: &Path,
    folder: &Path,
    flags: &[&OsStr],
) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--no-input"])
        .args(flags)
        .arg("--requirement")
        .arg(pinned);
    let finished = signals.run_capturing_stderr(&mut pip)?;
    signals.check()?;
    if finished.success() {
        return Ok(());
    }
    let name = pinned.file_name().unwrap_or(OsStr::new("the requirements")).to_string_lossy();
    Err(explain(&finished.stderr, &format!("the packages of {name}"), finished.code, folder).into())
}
