//! Files beside the tensors: those of the tokenizer, so that a checkpoint alone is enough to use its model.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use dtrain_common::manifest::{self, Checksum, FileEntry, Manifest};

use super::error::CheckpointError;
use crate::data::TokenizerFiles;

/// Writes the files into a partial folder, and lists them in its manifest.
pub(super) fn attach(
    partial: &Path,
    files: Option<&TokenizerFiles>,
    manifest: &mut Manifest,
) -> Result<(), CheckpointError> {
    for (name, bytes) in files.iter().flat_map(|files| files.all()) {
        let path = partial.join(name);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map_err(CheckpointError::io("write", &path))?;
        let bytes_of = bytes.len() as u64;
        let checksum = Checksum::of_bytes(blake3::hash(bytes).as_bytes());
        let parts = vec![manifest::Part { bytes: bytes_of, checksum }];
        manifest.files.push(FileEntry { name: name.to_owned(), bytes: bytes_of, parts });
    }
    Ok(())
}
