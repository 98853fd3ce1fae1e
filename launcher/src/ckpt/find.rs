//! Finds runs and checkpoints by the user's paths.

use anyhow::{Context, bail};
use dtrain_common::manifest::{FILE_NAME, Manifest};
use dtrain_common::run_dir::{RunDir, follow, step_of};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The meaning of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A run directory that has a folder of checkpoints.
    Run(RunDir),
    /// The folder of a checkpoint, whole or not.
    Checkpoint(PathBuf),
}

/// Finds a run directory, its folder of checkpoints, a checkpoint, a link to one, or `RUN_DIR@STEP`.
pub(super) fn find(path: &Path) -> anyhow::Result<Found> {
    let path = &follow(path);
    let shown = path.display();
    let about = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if let Ok(target) = fs::read_link(path) {
                bail!("{shown} points to {}, which does not exist", target.display());
            }
            return match at(path)? {
                Some(checkpoint) => Ok(Found::Checkpoint(checkpoint)),
                None => bail!(
                    "{shown} does not exist; give a run directory, or a checkpoint such as RUN_DIR/checkpoints/latest"
                ),
            };
        }
        other => other.with_context(|| format!("cannot read {shown}"))?,
    };
    if !about.is_dir() {
        bail!("{shown} is a file; name the folder of a checkpoint, or a run directory");
    }
    let real = fs::canonicalize(path).with_context(|| format!("cannot find {shown}"))?;
    let name = real.file_name().and_then(OsStr::to_str).unwrap_or_default();
    if step_of(name).is_some() || path.join(FILE_NAME).exists() {
        let target = fs::read_link(path).ok();
        let folder = target.map_or_else(|| path.to_owned(), |target| path.with_file_name(target));
        return Ok(Found::Checkpoint(folder));
    }
    if path.file_name() == Some(OsStr::new("checkpoints")) {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        return Ok(Found::Run(RunDir::new(parent.unwrap_or(Path::new(".")))));
    }
    if path.join("checkpoints").is_dir() {
        return Ok(Found::Run(RunDir::new(path)));
    }
    if let Some(parent) = real.parent().filter(|_| name == "checkpoints") {
        return Ok(Found::Run(RunDir::new(parent)));
    }
    if path.join("recipe.toml").exists() {
        bail!("the run in {shown} has no checkpoints");
    }
    bail!(
        "{shown} is neither a run directory, which has a folder `checkpoints`, nor a checkpoint, which has a {FILE_NAME}"
    );
}

/// Returns the run directory that `path` must name.
pub(super) fn run_dir(path: &Path) -> anyhow::Result<RunDir> {
    match find(path)? {
        Found::Run(run_dir) => Ok(run_dir),
        Found::Checkpoint(folder) => {
            let folder = folder.display();
            bail!("{folder} is a checkpoint; give its run directory")
        }
    }
}

/// Returns a checkpoint's folder, or the latest checkpoint of a run directory.
pub(super) fn checkpoint(path: &Path) -> anyhow::Result<PathBuf> {
    match find(path)? {
        Found::Checkpoint(folder) => Ok(folder),
        Found::Run(run_dir) => {
            let mut candidates = run_dir.candidates()?;
            if candidates.is_empty() {
                bail!("there is no checkpoint in {}", run_dir.checkpoints().display());
            }
            Ok(candidates.swap_remove(0))
        }
    }
}

/// What a path to a trained model means to the trainer.
pub(crate) struct Model {
    /// The checkpoint, or a run directory for its newest whole checkpoint.
    pub(crate) checkpoint: PathBuf,
    /// A checkpoint that holds the recipe.
    pub(crate) recipe: PathBuf,
    pub(crate) manifest: Manifest,
}

/// Finds a checkpoint or a run, and its recipe.
pub(crate) fn model(path: &Path) -> anyhow::Result<Model> {
    let recipe = checkpoint(path)?;
    let read = |recipe: PathBuf| Ok::<_, anyhow::Error>((Manifest::read(&recipe)?, recipe));
    match find(path)? {
        Found::Checkpoint(checkpoint) => {
            let (manifest, recipe) = read(recipe)?;
            Ok(Model { checkpoint, recipe, manifest })
        }
        Found::Run(run_dir) => {
            // The newest may be damaged.
            let mut others = run_dir.candidates()?.into_iter().filter_map(|one| read(one).ok());
            let (manifest, recipe) = others.next().map_or_else(|| read(recipe), Ok)?;
            Ok(Model { checkpoint: run_dir.root().to_owned(), recipe, manifest })
        }
    }
}

/// Parses `RUN_DIR@120`, `RUN_DIR@latest` and `RUN_DIR@best`; `None` if the name has no such end.
fn at(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let Some((run, which)) = path.to_str().and_then(|text| text.rsplit_once('@')) else {
        return Ok(None);
    };
    let run_dir = RunDir::new(run);
    if !run_dir.checkpoints().is_dir() {
        return Ok(None);
    }
    let linked = |link: PathBuf| match run_dir.linked(&link) {
        Some(step) => Ok(Some(run_dir.checkpoint(step))),
        None => bail!("{} does not exist, or is not a link to a checkpoint of this run", link.display()),
    };
    match which {
        "latest" => linked(run_dir.latest()),
        "best" => linked(run_dir.best()),
        number => {
            let Ok(step) = number.parse() else {
                let path = path.display();
                bail!("{number:?} in {path} is not a step; write a number, latest or best");
            };
            let folder = run_dir.checkpoint(step);
            if !folder.is_dir() {
                let steps: Vec<_> = run_dir.steps()?.iter().map(ToString::to_string).collect();
                let steps = match &steps[..] {
                    [] => "none".to_owned(),
                    steps => steps.join(", "),
                };
                let folder = folder.display();
                bail!("{folder} does not exist; this run has checkpoints of the steps: {steps}");
            }
            Ok(Some(folder))
        }
    }
}
