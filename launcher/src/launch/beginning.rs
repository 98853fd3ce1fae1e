//! Whether a run has begun with the checkpoint that `--resume` names. Until then every attempt, and the same command again, begins with it.

use dtrain_common::run_dir::RunDir;
use std::io;
use std::path::{Path, PathBuf};

/// The checkpoint that `--resume` names, and the run before anything began with it.
#[derive(Debug)]
pub(super) struct Beginning {
    asked: PathBuf,
    /// None where an earlier launch of the same command has begun with it, and this one goes on from a newer checkpoint.
    before: Option<Line>,
}

/// What changes when a run goes back to a checkpoint, or writes the next one. The name of the newest checkpoint alone does not tell: the
/// run may have reached the same step again.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    latest: Option<PathBuf>,
    set_aside: Vec<(PathBuf, Vec<u64>)>,
}

impl Line {
    fn of(run_dir: &RunDir) -> io::Result<Self> {
        let set_aside = run_dir.set_aside()?;
        Ok(Self {
            latest: run_dir.latest().read_link().ok(),
            set_aside: set_aside
                .into_iter()
                .map(|aside| (aside.folder, aside.steps))
                .collect(),
        })
    }
}

impl Beginning {
    /// Before the first attempt: `asked` is what `--resume` names, `checkpoint` what this launch begins with.
    ///
    /// # Errors
    /// The checkpoints cannot be listed.
    pub(super) fn new(run_dir: &RunDir, asked: &Path, checkpoint: &Path) -> io::Result<Self> {
        let same = asked.canonicalize().ok() == checkpoint.canonicalize().ok();
        Ok(Self {
            asked: asked.to_owned(),
            before: same.then(|| Line::of(run_dir)).transpose()?,
        })
    }

    /// The checkpoint, as it was given.
    pub(super) fn asked(&self) -> &Path {
        &self.asked
    }

    /// Whether an earlier launch of the same command has begun with it.
    pub(super) fn was_before(&self) -> bool {
        self.before.is_none()
    }

    /// Whether the run has begun with it by now.
    ///
    /// # Errors
    /// The checkpoints cannot be listed.
    pub(super) fn is_done(&self, run_dir: &RunDir) -> io::Result<bool> {
        match &self.before {
            None => Ok(true),
            Some(before) => Ok(Line::of(run_dir)? != *before),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_run_that_reached_the_same_step_again_has_begun() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        for step in [32, 64] {
            fs::create_dir_all(run_dir.checkpoint(step)).unwrap();
        }
        symlink(run_dir.checkpoint(64), run_dir.latest()).unwrap();
        let asked = run_dir.checkpoint(32);
        let beginning = Beginning::new(&run_dir, &asked, &asked).unwrap();
        assert!(!beginning.is_done(&run_dir).unwrap() && !beginning.was_before());
        let aside = run_dir.checkpoints().join("rollback-1");
        fs::create_dir(&aside).unwrap();
        fs::rename(run_dir.checkpoint(64), aside.join("step-00000064")).unwrap();
        assert!(beginning.is_done(&run_dir).unwrap());
        fs::create_dir(run_dir.checkpoint(64)).unwrap();
        assert!(beginning.is_done(&run_dir).unwrap(), "latest names step 64 again");
    }

    #[test]
    fn a_launch_that_goes_on_from_a_newer_checkpoint_begins_with_nothing_asked() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        for step in [32, 64] {
            fs::create_dir_all(run_dir.checkpoint(step)).unwrap();
        }
        let beginning = Beginning::new(&run_dir, &run_dir.checkpoint(32), &run_dir.checkpoint(64)).unwrap();
        assert!(beginning.was_before() && beginning.is_done(&run_dir).unwrap());
    }
}
