//! Where samples come from: a table, or one of several sources.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::DataError;
use super::packed::Packed;

/// The lines of samples in a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableLines {
    pub path: PathBuf,
    /// The number of each sample's line, from 1.
    pub lines: Packed<u32>,
}

/// One of the sources that samples are joined from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourcePart {
    /// The number of its samples, which follow those of the source before.
    pub samples: usize,
    /// Its weight in a mixture.
    pub weight: Option<f64>,
    /// The folder of the data. A survey's fingerprint does not count it.
    pub(super) root: PathBuf,
    pub(super) set: String,
    /// The folder of its first images; known only after a scan.
    #[serde(skip)]
    pub(super) folder: String,
    #[serde(default, rename = "dtrain_table")]
    pub(super) table: Option<TableLines>,
}

impl SourcePart {
    /// Returns the folder or the table.
    pub(super) fn place(&self) -> PathBuf {
        self.table.as_ref().map_or_else(|| self.root.join(&self.set), |table| table.path.clone())
    }

    /// Returns the folder that its paths are below.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the folder of its first images below [`SourcePart::root`].
    pub(super) fn folder(&self) -> &str {
        &self.folder
    }

    pub(super) fn table(&self) -> Option<&TableLines> {
        self.table.as_ref()
    }

    /// Returns the part with the samples for which `is_kept`.
    pub(super) fn kept(&self, is_kept: &dyn Fn(usize) -> bool) -> Result<Self, DataError> {
        let samples = (0..self.samples).filter(|&at| is_kept(at)).count();
        let lines = |table: &TableLines| {
            Ok::<_, DataError>(TableLines { path: table.path.clone(), lines: table.lines.kept(is_kept)? })
        };
        Ok(Self { samples, table: self.table.as_ref().map(lines).transpose()?, ..self.clone() })
    }
}
