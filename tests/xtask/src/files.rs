//! Files and folders, with errors that name them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::problem::Problem;

/// Creates a folder, and those above it.
pub fn create(folder: &Path) -> Result<()> {
    Ok(fs::create_dir_all(folder).map_err(|error| Problem::write(folder, error))?)
}

/// Creates a folder, or empties an existing one.
pub fn create_empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| Problem::write(folder, error))?;
    }
    create(folder)
}

/// Copies a file with its mode.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Writes a file.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    Ok(fs::write(path, contents).map_err(|error| Problem::write(path, error))?)
}
