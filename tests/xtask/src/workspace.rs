//! Paths of the workspace, and of the folders that set-up creates in its `target`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// The version of libtorch that dtrain is built with.
pub(crate) const LIBTORCH_VERSION: &str = "2.11.0";

/// The workspace of this program.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the workspace two folders above this package. Cargo names the package at run time; without
    /// cargo, the build-time path is used.
    pub fn find() -> Result<Self> {
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        match package.ancestors().nth(2) {
            Some(root) if root.join("Cargo.toml").is_file() => Ok(Self { root: root.to_owned() }),
            _ => bail!(
                "{} is not in a dtrain workspace: run `cargo xtask` inside the repository",
                package.display()
            ),
        }
    }

    /// Returns the folder of the workspace's `Cargo.toml`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the workspace's `target`, which contains libtorch even if cargo builds elsewhere.
    pub fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// Returns the folder of libtorch and its libraries, with the layout of a Python's site-packages.
    pub fn libtorch(&self) -> PathBuf {
        self.target().join("libtorch")
    }

    /// Returns set-up's folder of unfinished packages: used only after the move to [`Self::libtorch`].
    pub fn staging(&self) -> PathBuf {
        self.target().join("libtorch-setup")
    }

    /// Returns the lock file, locked while a set-up changes [`Self::libtorch`].
    pub fn lock(&self) -> PathBuf {
        self.target().join("libtorch.lock")
    }

    /// Returns the `LIBTORCH` of `.cargo/config.toml`.
    pub fn default_libtorch(&self) -> PathBuf {
        self.libtorch().join("torch")
    }

    /// Shows `path` to people: relative to the workspace if it is inside.
    pub fn show<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// Returns the cargo that runs this program, in the workspace's folder.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root);
        cargo
    }
}
