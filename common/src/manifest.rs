//! `manifest.json` of a checkpoint: what the checkpoint is and which files belong to it.
//!
//! The manifest is written last, into a folder that is renamed into place afterwards, so a folder whose manifest
//! reads and whose files have their sizes is a whole checkpoint. [`Manifest::verify`] checks the content too.

mod checksum;
mod entry;
mod seal;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::checksum::{CHECKSUM_BYTES, Checksum, hex};
pub use self::entry::{FileEntry, Part};
use crate::files::write_atomic;
use crate::numbers;
use crate::recipe::{Best, Recipe};
use crate::run_dir::step_of;
use seal::Seal;

/// The newest format this version reads, and the one it writes.
pub const FORMAT: u32 = 4;
/// The first format whose manifests have a checksum of their own.
const SEALED: u32 = 3;
/// The oldest format that this version reads.
const OLDEST: u32 = 1;
/// Name of the manifest within a checkpoint's folder.
pub const FILE_NAME: &str = "manifest.json";
/// No manifest is larger; a file that is was not written by dtrain.
const MAX_BYTES: u64 = 16 << 20;

/// The state of a loss scaler.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The factor of the losses.
    pub scale: f64,
    /// Steps without an overflow since it last moved.
    pub clean_steps: u32,
}

/// The best checkpoint of a run so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BestSoFar {
    /// By what it is the best.
    pub by: Best,
    /// That figure of its evaluation; finite.
    pub value: f64,
    /// Its step.
    pub step: u64,
}

/// What was trained on, to tell whether it is the same when a run goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataMark {
    /// Samples to train on.
    pub train_samples: u64,
    /// Samples to test with.
    pub test_samples: u64,
    /// SHA-256 of what the survey of the data found, such as the names of all files and classes, in hexadecimal digits; independent
    /// of where the data lies.
    pub sha256: String,
}

/// The content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this layout; [`FORMAT`].
    pub format: u32,
    /// Version of dtrain that wrote the checkpoint.
    pub dtrain: String,
    /// Version of libtorch that wrote it.
    pub libtorch: String,
    /// The recipe's task.
    pub task: String,
    /// The model's name.
    pub model: String,
    /// Outputs of the classifier.
    pub classes: usize,
    /// The names of the classes in the order of their numbers, where they have names; empty in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// Number of parameters, buffers not counted.
    pub parameters: u64,
    /// Optimizer steps committed.
    pub step: u64,
    /// Epoch of the sample that is next, from 0.
    pub epoch: u64,
    /// Steps of that epoch already committed.
    pub step_in_epoch: u64,
    /// The name of the stage of the last of these steps, in a run of stages. The optimizer's state is that stage's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Samples trained on.
    pub samples: u64,
    /// Ranks at the time; a checkpoint resumes on any number.
    pub world_size: usize,
    /// The loss scale, in a run that needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Updates of the moving average, in a run that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_updates: Option<u64>,
    /// What the task keeps with the weights because a model is of no use without it, such as `{"vocabulary": ...}`; null
    /// where there is nothing.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub extra: Value,
    /// What was trained on; none in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataMark>,
    /// The recipe as resolved.
    pub recipe: Recipe,
    /// The last figures, by name; NaN is written as `null`.
    #[serde(with = "numbers::metrics", default)]
    pub metrics: BTreeMap<String, f64>,
    /// The best checkpoint so far, this one included, in a run that keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestSoFar>,
    /// The evaluation that belongs to this step is still to be made: a request to stop came before its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evaluation_owed: bool,
    /// Every other file of the checkpoint.
    pub files: Vec<FileEntry>,
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The folder has no manifest.
    #[error("{} holds no {FILE_NAME}, so it is not a whole checkpoint; name a folder such as RUN/checkpoints/step-00000120", dir.display())]
    Missing {
        /// The checkpoint's folder.
        dir: PathBuf,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The manifest is too large to be one.
    #[error("{} is larger than any manifest ({} MiB); it was not written by dtrain", path.display(), MAX_BYTES >> 20)]
    TooLarge {
        /// The manifest.
        path: PathBuf,
    },
    /// The manifest is not JSON of the expected shape.
    #[error("{} is not a checkpoint manifest: {source}", path.display())]
    Json {
        /// The manifest.
        path: PathBuf,
        /// What is wrong and where.
        source: serde_json::Error,
    },
    /// The manifest is not what was written.
    #[error("{} does not have its own checksum; the checkpoint is damaged, use an earlier one", path.display())]
    Altered {
        /// The manifest.
        path: PathBuf,
    },
    /// The folder has the name of another checkpoint.
    #[error("{} holds the checkpoint of step {step}; it was renamed or overwritten, and is not used", dir.display())]
    OtherStep {
        /// The folder.
        dir: PathBuf,
        /// The step by its manifest.
        step: u64,
    },
    /// The checkpoint was written by a newer dtrain.
    #[error(
        "{} has format {format} and this dtrain reads formats up to {FORMAT}; use the newer dtrain that wrote it",
        path.display()
    )]
    NewerFormat {
        /// The manifest.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// The format is none that ever was.
    #[error("{} has format {format}, which no dtrain writes", path.display())]
    UnknownFormat {
        /// The manifest.
        path: PathBuf,
        /// Its format.
        format: u32,
    },
    /// An entry's name could lead out of the folder, or stands twice.
    #[error("{} lists a file {name:?}; names must be plain, different file names in the checkpoint's own folder", path.display())]
    FileName {
        /// The manifest.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// An entry's checksum is none.
    #[error("{} lists {checksum:?} as the checksum of {name:?}; expected 64 lower-case hexadecimal digits", path.display())]
    ChecksumForm {
        /// The manifest.
        path: PathBuf,
        /// The file.
        name: String,
        /// The text in the checksum's place.
        checksum: String,
    },
    /// What the parts of a file add up to is not the file.
    #[error("{} lists {bytes} bytes of {name:?}, and parts or a checksum of another number of them", path.display())]
    Parts {
        /// The manifest.
        path: PathBuf,
        /// The file.
        name: String,
        /// Its size by the manifest.
        bytes: u64,
    },
    /// A file is not as long as the manifest says.
    #[error("{} has {got} bytes and its manifest says {expected}; the checkpoint is damaged, use an earlier one", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes by the manifest.
        expected: u64,
        /// Bytes found.
        got: u64,
    },
    /// A file's content is not what was written.
    #[error(
        "{} does not have the checksum of its manifest{}; the checkpoint is damaged, use an earlier one",
        path.display(),
        place(range, *whole)
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The bytes that the checksum is of.
        range: Range<u64>,
        /// Whether these are all of the file.
        whole: bool,
        /// The checksum by the manifest.
        expected: String,
        /// The one found.
        got: String,
    },
}

impl Manifest {
    /// Reads the manifest of the checkpoint in `dir`. The files it lists are not looked at.
    ///
    /// # Errors
    /// [`ManifestError`], whatever the file holds.
    pub fn read(dir: &Path) -> Result<Self, ManifestError> {
        let path = dir.join(FILE_NAME);
        let file = File::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound if dir.is_dir() => ManifestError::Missing { dir: dir.into() },
            _ => io_error("read", &path, source),
        })?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| io_error("read", &path, source))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(ManifestError::TooLarge { path });
        }
        let manifest = Self::parse(&bytes, &path)?;
        let named = dir.file_name().and_then(|name| name.to_str()).and_then(step_of);
        match named {
            Some(named) if named != manifest.step => Err(ManifestError::OtherStep {
                dir: dir.into(),
                step: manifest.step,
            }),
            _ => Ok(manifest),
        }
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<Self, ManifestError> {
        // The format first: the rest of a newer one may look different.
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let json = |source| ManifestError::Json {
            path: path.into(),
            source,
        };
        let Format { format } = serde_json::from_slice(bytes).map_err(json)?;
        match format {
            OLDEST..=FORMAT => {}
            0 => {
                return Err(ManifestError::UnknownFormat {
                    path: path.into(),
                    format,
                });
            }
            _ => {
                return Err(ManifestError::NewerFormat {
                    path: path.into(),
                    format,
                });
            }
        }
        match seal::check(bytes) {
            Seal::Whole => {}
            Seal::None if format < SEALED => {}
            Seal::Broken | Seal::None => return Err(ManifestError::Altered { path: path.into() }),
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(json)?;
        manifest.check_entries(path)?;
        Ok(manifest)
    }

    /// The content of the file that is written, with its checksum.
    ///
    /// # Errors
    /// [`ManifestError`] for entries that would not read back, naming `path`.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>, ManifestError> {
        self.check_entries(path)?;
        let json = serde_json::to_vec_pretty(self).map_err(|source| ManifestError::Json {
            path: path.into(),
            source,
        })?;
        Ok(seal::seal(json))
    }

    /// Writes the manifest into `dir`, whole or not at all.
    ///
    /// # Errors
    /// [`ManifestError`] for entries that would not read back, or when the file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), ManifestError> {
        let path = dir.join(FILE_NAME);
        let bytes = self.to_bytes(&path)?;
        write_atomic(&path, &bytes).map_err(|source| io_error("write", &path, source))
    }

    /// Checks that every file is there with its size, which takes no time.
    ///
    /// # Errors
    /// [`ManifestError`] naming the first file that is not.
    pub fn check_sizes(&self, dir: &Path) -> Result<(), ManifestError> {
        self.check_entries(&dir.join(FILE_NAME))?;
        self.files.iter().try_for_each(|entry| entry.check_size(dir))
    }

    /// Checks every file's size and checksum.
    ///
    /// # Errors
    /// [`ManifestError`] naming the first file that is not as it was written.
    pub fn verify(&self, dir: &Path) -> Result<(), ManifestError> {
        self.check_sizes(dir)?;
        entry::verify(&self.files, dir, |_| ())
    }

    /// All that is wrong with the files that `wanted` names: an entry for each file that is missing, unreadable or of another
    /// size, and for each part of the others whose checksum differs. `read` is called with the bytes just read, from several
    /// threads.
    pub fn damage(
        &self,
        dir: &Path,
        wanted: impl Fn(&str) -> bool,
        read: impl Fn(u64) + Sync,
    ) -> Vec<ManifestError> {
        if let Err(error) = self.check_entries(&dir.join(FILE_NAME)) {
            return vec![error];
        }
        let mut found = Vec::new();
        let mut sized = Vec::new();
        for entry in self.files.iter().filter(|entry| wanted(&entry.name)) {
            match entry.check_size(dir) {
                Ok(()) => sized.push(entry.clone()),
                Err(error) => found.push(error),
            }
        }
        found.extend(entry::damage(&sized, dir, read));
        found
    }

    fn check_entries(&self, path: &Path) -> Result<(), ManifestError> {
        let mut names = std::collections::BTreeSet::new();
        for entry in &self.files {
            let name = &entry.name;
            let plain = !name.is_empty()
                && name != "."
                && name != ".."
                && name != FILE_NAME
                && !name.contains(|c: char| c == '/' || c == '\\' || c.is_control());
            if !plain || !names.insert(name) {
                return Err(ManifestError::FileName {
                    path: path.into(),
                    name: name.clone(),
                });
            }
            entry.check(path)?;
        }
        Ok(())
    }
}

/// Which bytes, where they are not all.
fn place(range: &Range<u64>, whole: bool) -> String {
    if whole {
        String::new()
    } else {
        format!(" in bytes {} to {}", range.start, range.end)
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> ManifestError {
    ManifestError::Io {
        action,
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests;
