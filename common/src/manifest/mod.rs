//! `manifest.json` of a checkpoint: its description and the list of its files.
//!
//! The manifest is written last, and its folder is renamed into place afterwards. So a checkpoint is whole if
//! its manifest reads and its files have their sizes. [`Manifest::verify`] checks the content too.

mod checksum;
mod entry;
mod error;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

pub use self::checksum::{CHECKSUM_BYTES, Checksum, hex};
pub use self::entry::{FileEntry, Part};
pub use self::error::ManifestError;
use self::error::failed;
use crate::files::write_atomic;
use crate::numbers;
pub use crate::pointer::{folder_name, step_of};
use crate::recipe::{AnyRecipe, Best, RecipeError, Source};

/// The newest format; this version writes it.
pub const FORMAT: u32 = 4;
/// The first format whose manifests have their own checksum.
const FIRST_WITH_CHECKSUM: u32 = 3;
const OLDEST: u32 = 1;
/// Name of the manifest within a checkpoint's folder.
pub const FILE_NAME: &str = "manifest.json";
/// Upper limit for a manifest; only earlier versions wrote larger ones.
const MAX_BYTES: u64 = 16 << 20;

/// Text around the last field: the checksum of all bytes before the comma in `CHECKSUM_PREFIX`. It can be checked
/// without parsing JSON.
const CHECKSUM_PREFIX: &str = ",\n  \"checksum\": \"";
const CHECKSUM_SUFFIX: &str = "\"\n}\n";

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    pub scale: f64,
    /// Steps without an overflow since the last change of the scale.
    pub clean_steps: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BestSoFar {
    pub by: Best,
    /// The value of that figure in its evaluation; finite.
    pub value: f64,
    pub step: u64,
}

/// The progress of `train.stop_early`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stopping {
    pub by: Best,
    /// The figure of the last evaluation that was an improvement, finite; none before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<f64>,
    /// The step of that evaluation.
    pub step: u64,
    /// Evaluations without an improvement since then.
    pub since: u64,
    /// The step of the last evaluation that counted: no step counts twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<u64>,
}

/// A fingerprint of the training data; a resume compares it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFingerprint {
    pub train_samples: u64,
    pub test_samples: u64,
    /// None without validation samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_samples: Option<u64>,
    /// SHA-256 of the survey of the data, in hexadecimal digits; independent of the folder.
    pub sha256: String,
    /// The form of the survey that was hashed; 0 in checkpoints of early versions.
    #[serde(default)]
    pub form: u32,
}

/// A field of every sample of the training data, which the model may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleField {
    pub name: String,
    pub dtype: FieldType,
    /// The shape in one sample, such as channels, height and width of an image.
    pub shape: Vec<usize>,
}

/// The type of a field's values, by PyTorch's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldType {
    Float32,
    Int64,
}

/// Steps of a run with training data of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPeriod {
    /// Steps of the run before it.
    pub step: u64,
    pub train_samples: u64,
}

/// Parameters that a checkpoint lacks: they are those of `model.file` or `model.weights`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// BLAKE3 hash of their names and values, in hexadecimal digits.
    pub blake3: String,
    /// The weights with adapters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapted: Vec<String>,
    /// Those of them that are input x output, as in Hugging Face's `Conv1D`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transposed: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this layout; [`FORMAT`].
    pub format: u32,
    /// Version of dtrain that wrote the checkpoint.
    pub dtrain: String,
    /// Version of libtorch that wrote it.
    pub libtorch: String,
    pub task: String,
    pub model: String,
    /// Outputs of the classifier.
    pub classes: usize,
    /// Names of the classes by number, if they have names; empty in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_names: Vec<String>,
    /// Number of parameters, without buffers.
    pub parameters: u64,
    pub step: u64,
    /// Epoch of the next sample, from 0.
    pub epoch: u64,
    /// Committed steps of that epoch.
    pub step_in_epoch: u64,
    /// Name of the last step's stage, in a run with stages. The optimizer's state belongs to that stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    pub samples: u64,
    /// Number of ranks that wrote it; a checkpoint resumes on any number.
    pub world_size: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Updates of the moving average, in a run that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_updates: Option<u64>,
    /// Data of the task that the model needs, such as `{"vocabulary": ...}`, or null.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub extra: Value,
    /// The fields of a sample, in the order of the data set; none in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<SampleField>,
    /// Fingerprint of the training data; none in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataFingerprint>,
    /// The sizes of the training data in order, if a resume changed the size. The first begins at step 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_periods: Vec<DataPeriod>,
    /// BLAKE3 hash of `model.file`, in hexadecimal digits; none without the file, and in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// What the checkpoint lacks, if it lacks parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
    pub recipe: AnyRecipe,
    /// The last figures, by name; NaN is written as `null`.
    #[serde(with = "numbers", default)]
    pub metrics: BTreeMap<String, f64>,
    /// The best checkpoint so far, including this one, in a run that keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestSoFar>,
    /// The progress of `train.stop_early`, in a run that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping: Option<Stopping>,
    /// Whether the evaluation of this step is still to be done: a checkpoint is written before its evaluation.
    #[serde(rename = "evaluation_owed", default, skip_serializing_if = "std::ops::Not::not")]
    pub evaluation_missing: bool,
    pub files: Vec<FileEntry>,
}

impl Manifest {
    /// Returns the recipe of the checkpoint in `dir`, as it was resolved.
    pub fn recipe_source(&self, dir: &Path) -> Result<Source, RecipeError> {
        Ok(Source { name: format!("the recipe of {}", dir.display()), text: self.recipe.to_toml()? })
    }

    /// Reads the manifest of the checkpoint in `dir`. Does not check the listed files.
    pub fn read(dir: &Path) -> Result<Self, ManifestError> {
        let path = dir.join(FILE_NAME);
        let file = File::open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound if dir.is_dir() => ManifestError::Missing(dir.into()),
            _ => failed("read", &path)(source),
        })?;
        let mut bytes = Vec::new();
        let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
        if read.map_err(failed("read", &path))? as u64 > MAX_BYTES {
            return Err(ManifestError::TooLarge(path));
        }
        let manifest = Self::parse(&bytes, &path)?;
        let named = dir.file_name().and_then(|name| name.to_str()).and_then(step_of);
        match named {
            Some(named) if named != manifest.step => Err(ManifestError::OtherStep(dir.into(), manifest.step)),
            _ => Ok(manifest),
        }
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<Self, ManifestError> {
        // Read the format first: the rest of a newer manifest may look different.
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let json = |source| ManifestError::Json(path.into(), source);
        let Format { format } = serde_json::from_slice(bytes).map_err(json)?;
        if format > FORMAT {
            return Err(ManifestError::NewerFormat { path: path.into(), format });
        }
        if format < OLDEST {
            return Err(ManifestError::UnknownFormat(path.into(), format));
        }
        let has_checksum = has_valid_checksum(bytes);
        if !has_checksum.unwrap_or(format < FIRST_WITH_CHECKSUM) {
            return Err(ManifestError::OwnChecksum(path.into()));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|source| match has_checksum {
            Some(_) => ManifestError::OtherContent(path.into(), source),
            None => ManifestError::Json(path.into(), source),
        })?;
        manifest.check_entries(path)?;
        Ok(manifest)
    }

    /// Returns the content of the file, with its checksum. It is an error if no resume would read it.
    pub fn to_bytes(&self, path: &Path) -> Result<Vec<u8>, ManifestError> {
        self.check_entries(path)?;
        let json = serde_json::to_vec_pretty(self);
        let bytes = add_checksum(json.map_err(|source| ManifestError::Json(path.into(), source))?);
        self.check_length(bytes.len() as u64)?;
        Ok(bytes)
    }

    /// Checks before the first step that the manifest will not be too large, with its files, figures and parts of `state`
    /// bytes.
    pub fn check_room(&self, path: &Path, state: u64) -> Result<(), ManifestError> {
        /// Bytes for figures and file names, and for the parts of a rank in three files.
        const REST: u64 = 64 << 10;
        const PER_RANK: u64 = 1 << 10;
        /// Large parts are divided into parts of at least `PART` bytes, each with a checksum and its place.
        const PART: u64 = 128 << 20;
        const PER_PART: u64 = 256;
        let bytes = self.to_bytes(path)?.len() as u64;
        self.check_length(bytes + REST + PER_RANK * self.world_size as u64 + PER_PART * (state / PART))
    }

    fn check_length(&self, bytes: u64) -> Result<(), ManifestError> {
        if bytes <= MAX_BYTES {
            return Ok(());
        }
        let length = |json: serde_json::Result<Vec<u8>>| json.map_or(0, |json| json.len() as u64);
        Err(ManifestError::Unwritable {
            bytes,
            class_names: length(serde_json::to_vec(&self.class_names)),
            extra: length(serde_json::to_vec(&self.extra)),
            recipe: length(serde_json::to_vec(&self.recipe)),
        })
    }

    /// Writes the manifest into `dir`, whole or not at all.
    pub fn write(&self, dir: &Path) -> Result<(), ManifestError> {
        let path = dir.join(FILE_NAME);
        let bytes = self.to_bytes(&path)?;
        write_atomic(&path, &bytes).map_err(failed("write", &path))
    }

    /// Checks that every file exists with its size. Fast: it reads no content.
    pub fn check_sizes(&self, dir: &Path) -> Result<(), ManifestError> {
        self.check_entries(&dir.join(FILE_NAME))?;
        self.files.iter().try_for_each(|entry| entry.check_size(dir))
    }

    /// Checks the size and checksum of every file, up to the first error.
    pub fn verify(&self, dir: &Path) -> Result<(), ManifestError> {
        self.verify_with(dir, |_| ())
    }

    /// Works like [`Manifest::verify`], and calls `read` with the bytes of each read, from several threads.
    pub fn verify_with(&self, dir: &Path, read: impl Fn(u64) + Sync) -> Result<(), ManifestError> {
        self.check_sizes(dir)?;
        entry::errors(&self.files, dir, true, read).into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns all errors of the files that `wanted` selects: missing, unreadable, wrong size, and parts with
    /// a wrong checksum. Calls `read` with the bytes of each read, from several threads.
    pub fn errors(
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
        found.extend(entry::errors(&sized, dir, false, read));
        found
    }

    /// Returns the periods of a run that resumes from here with `train_samples`: the past ones, and the next if the size
    /// of the training data changed. Empty if the size never changed, or is unknown.
    pub fn periods_with(&self, train_samples: u64) -> Vec<DataPeriod> {
        let mut periods = self.data_periods.clone();
        if periods.is_empty() {
            let first = self.train_samples();
            periods.extend(first.map(|train_samples| DataPeriod { step: 0, train_samples }));
        }
        // A period without steps leaves no trace.
        periods.retain(|period| period.step < self.step.max(1));
        if periods.last().is_some_and(|last| last.train_samples != train_samples) {
            periods.push(DataPeriod { step: self.step, train_samples });
        }
        if periods.len() > 1 { periods } else { Vec::new() }
    }

    /// Returns the size of the training data; for a checkpoint of an earlier version, the size that its progress shows.
    fn train_samples(&self) -> Option<u64> {
        let shown = || {
            let of_epoch = self.step_in_epoch * self.recipe.train.effective_batch as u64;
            let whole = self.samples.checked_sub(of_epoch).filter(|_| self.recipe.stage.is_empty());
            whole?.checked_div(self.epoch)
        };
        self.data.as_ref().map(|data| data.train_samples).or_else(shown)
    }

    fn check_entries(&self, path: &Path) -> Result<(), ManifestError> {
        let mut names = BTreeSet::new();
        for entry in &self.files {
            let name = entry.name.as_str();
            let plain = !["", ".", "..", FILE_NAME].contains(&name)
                && !name.contains(|c: char| c == '/' || c == '\\' || c.is_control());
            if !plain || !names.insert(name) {
                return Err(ManifestError::FileName(path.into(), name.into()));
            }
            entry.check(path)?;
        }
        Ok(())
    }
}

/// Adds the checksum as the last field to a JSON object that `serde_json` wrote prettily.
fn add_checksum(mut object: Vec<u8>) -> Vec<u8> {
    let end = object.strip_suffix(b"\n}").map_or(object.len(), <[u8]>::len);
    object.truncate(end);
    object.extend(CHECKSUM_PREFIX.bytes().chain(checksum_of(&object).bytes()).chain(CHECKSUM_SUFFIX.bytes()));
    object
}

/// Returns whether a manifest has its checksum; `None` if it lists no checksum.
fn has_valid_checksum(bytes: &[u8]) -> Option<bool> {
    // Search from the end: the recipe may hold any text, but no quoted text with a line break.
    let mut windows = bytes.windows(CHECKSUM_PREFIX.len());
    let at = windows.rposition(|window| window == CHECKSUM_PREFIX.as_bytes())?;
    let (object, rest) = bytes.split_at(at);
    Some(rest == [CHECKSUM_PREFIX, &checksum_of(object), CHECKSUM_SUFFIX].concat().as_bytes())
}

fn checksum_of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
pub(crate) mod tests;
