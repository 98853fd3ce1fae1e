//! Folders in the place of `latest` and `best`, which `cp -rL` makes of links: they are read like links, and
//! [`RunDir::settle_copies`] tidies them up.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::entries::rename_for_removal;
use super::error::failed;
use super::{RunDir, RunDirError};
use crate::files::unused;
use crate::manifest::{FILE_NAME, Manifest};
use crate::pointer::{is_copy, point};

/// A folder in the place of a link, and its new state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettledCopy {
    /// It was the only copy of this step, and got the name of a checkpoint.
    Renamed(PathBuf, PathBuf),
    /// It was the same as this checkpoint, which is whole.
    Removed(PathBuf, PathBuf),
    /// This checkpoint was damaged. The copy replaces it.
    Replaced(PathBuf, PathBuf),
    /// It is unclear which is whole: the copy is now here.
    Kept(PathBuf, PathBuf),
}

impl fmt::Display for SettledCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (copy, other) = match self {
            Self::Renamed(copy, other)
            | Self::Removed(copy, other)
            | Self::Replaced(copy, other)
            | Self::Kept(copy, other) => (copy.display(), other.display()),
        };
        write!(f, "{copy} was a folder and not a link, as after `cp -rL`: ")?;
        match self {
            Self::Renamed(..) => write!(f, "renamed to {other}"),
            Self::Removed(..) => write!(f, "removed, because {other} is the same and whole"),
            Self::Replaced(..) => write!(f, "it replaces {other}, which was damaged"),
            Self::Kept(..) => {
                write!(f, "renamed to {other}; `dtrain ckpt verify` checks it, remove it yourself")
            }
        }
    }
}

impl RunDir {
    /// Makes links again of `latest`, `best` and the link of a commit that a copy made folders of. Removes nothing that is not proved to be
    /// elsewhere, byte by byte. Rank 0 calls it with the claim of the training, before [`RunDir::recover`].
    pub fn settle_copies(&self) -> Result<Vec<SettledCopy>, RunDirError> {
        let copies = [self.next(), self.latest(), self.best()].into_iter().filter(|link| is_copy(link));
        copies.map(|link| self.settle_copy(&link).map_err(failed("move", &link))).collect()
    }

    fn settle_copy(&self, link: &Path) -> io::Result<SettledCopy> {
        let Ok(step) = Manifest::read(link).map(|manifest| manifest.step) else { return keep_aside(link) };
        let own = self.checkpoint(step);
        let verified = |folder: &Path| Manifest::read(folder).and_then(|manifest| manifest.verify(folder));
        // A figure that is not a number equals none, not even itself.
        let manifest_of = |folder: &Path| fs::read(folder.join(FILE_NAME));
        let paths = (link.to_owned(), own.clone());
        let settled = match own.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::rename(link, &own)?;
                SettledCopy::Renamed(paths.0, paths.1)
            }
            Err(error) => return Err(error),
            Ok(_) => match (verified(&own), verified(link)) {
                (Ok(()), Ok(())) if manifest_of(&own)? == manifest_of(link)? => {
                    rename_for_removal(link)?;
                    SettledCopy::Removed(paths.0, paths.1)
                }
                (Err(error), Ok(())) if error.is_damage() => {
                    // After a crash in between, the copy is the only one and gets its name.
                    rename_for_removal(&own)?;
                    fs::rename(link, &own)?;
                    SettledCopy::Replaced(paths.0, paths.1)
                }
                _ => keep_aside(link)?,
            },
        };
        point(link, &crate::pointer::folder_name(step))?;
        Ok(settled)
    }

    /// Returns the folders in the place of links, with their steps.
    pub(super) fn copies(&self) -> Vec<(u64, PathBuf)> {
        let copies = [self.latest(), self.best()].into_iter().filter(|link| is_copy(link));
        copies.filter_map(|link| Some((Manifest::read(&link).ok()?.step, link))).collect()
    }
}

/// Renames a folder to `latest-copy`, or with a number.
fn keep_aside(link: &Path) -> io::Result<SettledCopy> {
    let name = link.file_name().unwrap_or_default().to_string_lossy();
    let name = name.trim_start_matches('.');
    let aside = unused(&link.with_file_name(format!("{name}-copy")));
    fs::rename(link, &aside)?;
    Ok(SettledCopy::Kept(link.to_owned(), aside))
}
