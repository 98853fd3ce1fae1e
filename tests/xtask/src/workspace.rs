//! Where things lie: the workspace and the folders that set-up makes in its `target`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

/// The workspace that this program belongs to.
#[derive(Debug)]
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the workspace: two folders above this package, as cargo names it at run time, or where this program was
    /// built when it was not started by cargo.
    pub fn find() -> Result<Self> {
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        match package.ancestors().nth(2) {
            Some(root) if root.join("Cargo.toml").is_file() => Ok(Self { root: root.to_owned() }),
            _ => bail!(
                "{} does not lie in a dtrain workspace; start this as `cargo xtask` inside the repository",
                package.display()
            ),
        }
    }

    /// The folder of the workspace's `Cargo.toml`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `target` of the workspace, also where cargo builds elsewhere: `.cargo/config.toml` names libtorch in it.
    pub fn target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// Where set-up puts libtorch and the libraries it needs, laid out as in a Python's site-packages.
    pub fn libtorch(&self) -> PathBuf {
        self.target().join("libtorch")
    }

    /// Where set-up prepares what it fetches. Nothing in it is ever used before it has moved to [`Self::libtorch`].
    pub fn staging(&self) -> PathBuf {
        self.target().join("libtorch-setup")
    }

    /// Locked while a set-up changes [`Self::libtorch`].
    pub fn lock(&self) -> PathBuf {
        self.target().join("libtorch.lock")
    }

    /// The `LIBTORCH` of `.cargo/config.toml`.
    pub fn default_libtorch(&self) -> PathBuf {
        self.libtorch().join("torch")
    }

    /// `path` for people: relative to the workspace where it lies in it.
    pub fn show<'a>(&self, path: &'a Path) -> std::path::Display<'a> {
        path.strip_prefix(&self.root).unwrap_or(path).display()
    }

    /// The cargo that runs this program, working in the workspace.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.root);
        cargo
    }
}
