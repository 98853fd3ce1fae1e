//! What a user means by the name of a run or of a checkpoint.

use anyhow::{Context, bail};
use dtrain_common::manifest::FILE_NAME;
use dtrain_common::run_dir::{RunDir, step_of};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A run directory that has a folder of checkpoints.
    Run(RunDir),
    /// The folder of a checkpoint, whole or not.
    Checkpoint(PathBuf),
}

/// What `path` names: a run directory, the folder of its checkpoints, a checkpoint, a link to one, or `RUN_DIR@STEP`.
/// Errors: it names none of these.
pub(super) fn find(path: &Path) -> anyhow::Result<Found> {
    let about = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if let Ok(target) = fs::read_link(path) {
                bail!(
                    "{} points to {}, which is not there",
                    path.display(),
                    target.display()
                );
            }
            return match at(path)? {
                Some(checkpoint) => Ok(Found::Checkpoint(checkpoint)),
                None => bail!(
                    "there is no {}; name a run directory, or a checkpoint such as RUN_DIR/checkpoints/latest",
                    path.display()
                ),
            };
        }
        other => other.with_context(|| format!("cannot look at {}", path.display()))?,
    };
    if !about.is_dir() {
        bail!(
            "{} is a file; name the folder of a checkpoint, or a run directory",
            path.display()
        );
    }
    let real = fs::canonicalize(path).with_context(|| format!("cannot find {}", path.display()))?;
    let is_step = |path: &Path| {
        path.file_name()
            .and_then(OsStr::to_str)
            .and_then(step_of)
            .is_some()
    };
    if is_step(&real) || path.join(FILE_NAME).exists() {
        let target = fs::read_link(path).ok();
        return Ok(Found::Checkpoint(
            target.map_or_else(|| path.to_owned(), |target| path.with_file_name(target)),
        ));
    }
    if path.file_name() == Some(OsStr::new("checkpoints")) {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        return Ok(Found::Run(RunDir::new(parent.unwrap_or(Path::new(".")))));
    }
    if path.join("checkpoints").is_dir() {
        return Ok(Found::Run(RunDir::new(path)));
    }
    if real.file_name() == Some(OsStr::new("checkpoints"))
        && let Some(parent) = real.parent()
    {
        return Ok(Found::Run(RunDir::new(parent)));
    }
    if path.join("recipe.toml").exists() {
        bail!("the run in {} has no checkpoints", path.display());
    }
    bail!(
        "{} is neither a run directory, which has a folder `checkpoints`, nor a checkpoint, which has a {FILE_NAME}",
        path.display()
    );
}

/// A run directory.
/// Errors: `path` names something else, or nothing.
pub(super) fn run_dir(path: &Path) -> anyhow::Result<RunDir> {
    match find(path)? {
        Found::Run(run_dir) => Ok(run_dir),
        Found::Checkpoint(folder) => bail!(
            "{} is a checkpoint; name the run directory that it lies in",
            folder.display()
        ),
    }
}

/// The folder of a checkpoint, of a run directory the latest one.
/// Errors: `path` names nothing, or a run without checkpoints.
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

/// `RUN_DIR@120`, `RUN_DIR@latest` and `RUN_DIR@best`; none where the name has no such end.
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
        None => bail!(
            "{} is not there, or no link to a checkpoint of this run",
            link.display()
        ),
    };
    match which {
        "latest" => linked(run_dir.latest()),
        "best" => linked(run_dir.best()),
        number => {
            let Ok(step) = number.parse() else {
                bail!(
                    "{number:?} in {} is no step; write a number, latest or best",
                    path.display()
                );
            };
            let folder = run_dir.checkpoint(step);
            if !folder.is_dir() {
                let steps: Vec<_> = run_dir.steps()?.iter().map(ToString::to_string).collect();
                bail!(
                    "there is no {}; the steps of this run's checkpoints are: {}",
                    folder.display(),
                    if steps.is_empty() {
                        "none".into()
                    } else {
                        steps.join(", ")
                    }
                );
            }
            Ok(Some(folder))
        }
    }
}
