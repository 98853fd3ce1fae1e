//! The zip archive of `torch.export.save`. Entries are stored uncompressed, so nothing can be larger than the file.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use dtrain_common::content::Content;
use serde::de::DeserializeOwned;
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

use crate::exported_error::{ExportedError, Problem, Result};

/// The largest description of a program that is read. One of 10,000 operations has 30 MiB.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// What tensors that repeat their elements may take beyond twice the file's size.
const SLACK_BYTES: u64 = 64 << 20;

/// An open archive. Its list of entries has been checked.
pub(super) struct Archive {
    path: PathBuf,
    zip: ZipArchive<File>,
    /// Numbers and bytes of the entries by their names below the archive's folder.
    entries: HashMap<String, (usize, u64)>,
    /// The bytes that tensors may still take.
    budget: u64,
    /// Whether weights may be left out; the trainer takes zeros.
    pub(super) may_lack_weights: bool,
}

impl Archive {
    /// Opens a file and checks its list of entries.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let error = |problem| ExportedError::new(path, problem);
        let read = |source| error(Problem::Read(source));
        let file = File::open(path).map_err(read)?;
        let about = file.metadata().map_err(read)?;
        if !about.is_file() {
            return Err(error(Problem::NotArchive("it is not a regular file".to_owned())));
        }
        // The crate guesses where an archive begins from the place of the end record, and takes torch's record of
        // zip64 before it for headers: with a name of 8 letters, for the second one.
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let mut zip = ZipArchive::with_config(config, file).map_err(|source| {
            error(foreign(path).unwrap_or_else(|| Problem::NotArchive(source.to_string())))
        })?;
        let (mut entries, mut folder, mut total) = (HashMap::new(), None, 0u64);
        for number in 0..zip.len() {
            let entry =
                zip.by_index_raw(number).map_err(|source| error(Problem::Damaged(source.to_string())))?;
            let name =
                entry.name().map_err(|source| error(Problem::Damaged(source.to_string())))?.into_owned();
            let is_relative = Path::new(&name).components().all(|part| matches!(part, Component::Normal(_)));
            let Some((first, rest)) = name.split_once('/').filter(|_| is_relative && !name.contains('\\'))
            else {
                return Err(error(Problem::EntryName(name)));
            };
            if *folder.get_or_insert_with(|| first.to_owned()) != first {
                return Err(error(Problem::EntryName(name)));
            }
            if entry.is_dir() {
                continue;
            }
            if entry.compression() != CompressionMethod::Stored || entry.compressed_size() != entry.size() {
                return Err(error(Problem::Compressed(name)));
            }
            // Entries may not share bytes.
            total = total.saturating_add(entry.size());
            if total > about.len() {
                return Err(error(Problem::Damaged(format!("`{name}` exceeds the file"))));
            }
            entries.insert(rest.to_owned(), (number, entry.size()));
        }
        let budget = about.len().saturating_mul(2).saturating_add(SLACK_BYTES);
        Ok(Self { path: path.to_owned(), zip, entries, budget, may_lack_weights: false })
    }

    pub(super) fn error(&self, problem: Problem) -> ExportedError {
        ExportedError::new(&self.path, problem)
    }

    /// Counts the bytes of a tensor. A view can have more elements than the file has.
    pub(super) fn spend(&mut self, name: &str, bytes: u64) -> Result<()> {
        self.budget = self.budget.checked_sub(bytes).ok_or_else(|| {
            let reason = format!("with its {bytes} bytes, the tensors have far more bytes than the file");
            self.error(Problem::Tensor(name.to_owned(), reason))
        })?;
        Ok(())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Returns the sorted names of a folder with this ending.
    pub(super) fn names(&self, folder: &str, ending: &str) -> Vec<String> {
        let found = self.entries.keys().filter(|name| name.starts_with(folder) && name.ends_with(ending));
        let mut found: Vec<String> = found.cloned().collect();
        found.sort_unstable();
        found
    }

    /// Returns the only program below `models/`.
    pub(super) fn program(&self) -> Result<String> {
        match self.names("models/", ".json").as_slice() {
            [one] => Ok(one.clone()),
            [] if self.entries.keys().any(|name| name.ends_with("serialized_exported_program.json")) => {
                Err(self.error(Problem::OldArchive))
            }
            [] => {
                let none = || Problem::NotArchive("it has no program".to_owned());
                Err(self.error(foreign(&self.path).unwrap_or_else(none)))
            }
            several => Err(self.error(Problem::Programs(several.len()))),
        }
    }

    /// Returns the number of bytes of an entry.
    pub(super) fn size(&self, name: &str) -> Result<u64> {
        let found = self.entries.get(name).map(|(_, size)| *size);
        found.ok_or_else(|| self.error(Problem::NoEntry(name.to_owned())))
    }

    /// Returns the bytes of an entry, whose checksum is right.
    pub(super) fn bytes(&mut self, name: &str) -> Result<Vec<u8>> {
        let Some(&(number, size)) = self.entries.get(name) else {
            return Err(self.error(Problem::NoEntry(name.to_owned())));
        };
        let damaged =
            |reason: String| ExportedError::new(&self.path, Problem::Damaged(format!("`{name}`: {reason}")));
        let mut entry = self.zip.by_index(number).map_err(|source| damaged(source.to_string()))?;
        let mut bytes = Vec::new();
        let wanted = usize::try_from(size).map_err(|source| damaged(source.to_string()))?;
        bytes
            .try_reserve_exact(wanted)
            .map_err(|_| damaged(format!("{wanted} bytes do not fit in memory")))?;
        entry.read_to_end(&mut bytes).map_err(|source| damaged(source.to_string()))?;
        match bytes.len() == wanted {
            true => Ok(bytes),
            false => Err(damaged("it is truncated".to_owned())),
        }
    }

    pub(super) fn json<T: DeserializeOwned>(&mut self, name: &str) -> Result<T> {
        let bytes = self.json_bytes(name)?;
        self.parse(name, &bytes)
    }

    /// Returns the bytes of a description.
    pub(super) fn json_bytes(&mut self, name: &str) -> Result<Vec<u8>> {
        if let Some((_, size)) = self.entries.get(name).filter(|(_, size)| *size > MAX_JSON_BYTES) {
            return Err(self.error(Problem::TooLarge(name.to_owned(), *size)));
        }
        self.bytes(name)
    }

    pub(super) fn parse<T: DeserializeOwned>(&self, name: &str, bytes: &[u8]) -> Result<T> {
        serde_json::from_slice(bytes)
            .map_err(|source| self.error(Problem::Json(name.to_owned(), source.to_string())))
    }
}
/// Returns the problem of a file of a known other kind.
fn foreign(path: &Path) -> Option<Problem> {
    let content = Content::of_file(path)?;
    let remedy = match content {
        // Damaged or unknown inside.
        Content::Exported | Content::Zip => return None,
        Content::Safetensors | Content::TorchZip | Content::TorchPickle => {
            "it has weights and no program: write model.file by `dtrain import`, and set model.weights to weights in safetensors"
                .to_owned()
        }
        other => other.remedy(path).unwrap_or_else(|| "write the model by `dtrain import`".to_owned()),
    };
    Some(Problem::Foreign(content, remedy))
}
