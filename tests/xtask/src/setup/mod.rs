//! `setup`: installs libtorch, so that plain `cargo build`, `cargo test` and `cargo run` work.
//!
//! A stamp in `target/libtorch` lists the pins of present packages; a package is entered only when all its
//! files are in place. A new libtorch is prepared in `target/libtorch-setup` and renamed into place as a
//! whole. So an interrupted download, a crash or Ctrl-C never leaves an incomplete set that looks complete.

mod background_build;
mod choice;
mod install;
mod libtorch;
mod pins;
mod pip;
mod tools;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context, Result};

pub use crate::problem::Problem;
use crate::process::Signals;
use crate::workspace::{LIBTORCH_VERSION, Workspace};
use background_build::BackgroundBuild;
use choice::Choice;
pub use choice::{Set, SetArgs};
use install::Installation;
use pins::Arch;
pub use pip::explain;
pub use tools::find_python;

/// The arguments of `setup`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// The set of libraries.
    #[command(flatten)]
    pub set: SetArgs,
    /// Fetch all packages again
    #[arg(long)]
    force: bool,
    /// The profile of the build that follows: its parts without libtorch are built during the fetch.
    #[arg(skip)]
    pub builds: Option<String>,
}

impl From<SetArgs> for Args {
    fn from(set: SetArgs) -> Self {
        Self { set, ..Self::default() }
    }
}

/// A machine on which dtrain can be built.
#[derive(Debug)]
pub struct Ready {
    /// The chosen set of libtorch; with [`Set::Cpu`], the machine may still have GPUs.
    pub set: Set,
    /// Whether the user's own `LIBTORCH` is used.
    own_libtorch: bool,
    /// The C++ compiler for build scripts, if there is no `c++`.
    pub compiler: Option<OsString>,
}

impl Ready {
    /// Builds the launcher and the trainer in this profile, and returns cargo's exit code.
    pub fn build_dtrain(&self, workspace: &Workspace, signals: &Signals, profile: &str) -> Result<u8> {
        eprintln!("building dtrain; the first build takes some minutes");
        let code = signals.run(&mut self.build(workspace, profile))?.code;
        signals.check()?;
        Ok(code)
    }

    fn build(&self, workspace: &Workspace, profile: &str) -> Command {
        let mut build = self.cargo(workspace);
        build.args(["build", "--profile", profile]);
        build.args(["--package", "dtrain", "--package", "dtrain-worker"]);
        build
    }

    /// For builds without libtorch: checks nothing.
    pub fn without_libtorch() -> Self {
        Self { set: Set::Cpu, own_libtorch: false, compiler: None }
    }

    /// Returns cargo in the workspace, with the environment of a user's plain `cargo build`. libtorch's
    /// bindings watch these variables: with other values, each change between the two would rebuild them.
    pub fn cargo(&self, workspace: &Workspace) -> Command {
        let mut cargo = workspace.cargo();
        if !self.own_libtorch {
            cargo.env_remove("LIBTORCH");
        }
        if let Some(compiler) = &self.compiler {
            cargo.env("CXX", compiler);
        }
        cargo
    }

    /// Returns cargo's build folder: `CARGO_TARGET_DIR` and cargo's configuration can differ from `target`.
    pub fn build_folder(&self, workspace: &Workspace) -> Result<PathBuf> {
        let value = self.metadata(workspace)?;
        let folder = value["target_directory"].as_str().context("cargo metadata has no target directory")?;
        Ok(folder.into())
    }

    /// Returns what cargo tells about the workspace.
    pub(crate) fn metadata(&self, workspace: &Workspace) -> Result<serde_json::Value> {
        let mut cargo = self.cargo(workspace);
        let output = cargo.args(["metadata", "--no-deps", "--format-version", "1"]).output();
        let output = output.context("cannot run cargo metadata")?;
        let message = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("cargo metadata failed: {}", message()))
    }
}

/// Prepares the machine; fetches missing packages.
pub fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<Ready> {
    let arch = Arch::of_this_machine()?;
    let compiler = tools::find_compiler()?;
    let choice = Choice::new(&args.set, choice::find_driver().as_deref());
    let ready = |set, own_libtorch| Ready { set, own_libtorch, compiler: compiler.clone() };

    if let Some(folder) = own_libtorch(workspace) {
        let set = libtorch::check_own(&folder, &choice)?;
        eprintln!("libtorch {LIBTORCH_VERSION}: from LIBTORCH, {}", folder.display());
        return Ok(ready(set, true));
    }
    let installation = Installation { workspace, signals, arch, set: choice.set };
    // The lock is needed to remove files of an earlier set-up.
    if !args.force && installation.is_complete()? && !workspace.staging().exists() {
        eprintln!("libtorch {LIBTORCH_VERSION}, {choice}: in {}", workspace.show(&workspace.libtorch()));
        return Ok(ready(choice.set, false));
    }
    let started = Instant::now();
    eprintln!("libtorch {LIBTORCH_VERSION}, {choice}");
    let without = ready(choice.set, false);
    let build = args.builds.as_ref().map(|profile| {
        eprintln!("building the crates without libtorch in the background");
        BackgroundBuild::start(without.build(workspace, profile).arg("--keep-going"))
    });
    installation.complete(args.force)?;
    drop(build);
    eprintln!(
        "libtorch {LIBTORCH_VERSION} installed in {} after {:.1} s",
        workspace.show(&workspace.libtorch()),
        started.elapsed().as_secs_f64()
    );
    Ok(ready(choice.set, false))
}

/// Returns the user's `LIBTORCH`. If the user has not set it, cargo sets it from `.cargo/config.toml` for its
/// child processes: that value is the workspace's libtorch.
fn own_libtorch(workspace: &Workspace) -> Option<PathBuf> {
    let named = PathBuf::from(env::var_os("LIBTORCH")?);
    let default = workspace.default_libtorch();
    let same = named == default
        || matches!((fs::canonicalize(&named), fs::canonicalize(&default)), (Ok(a), Ok(b)) if a == b);
    (!same).then_some(named)
}
