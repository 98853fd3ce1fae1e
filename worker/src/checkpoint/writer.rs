//! Writes this rank's part of a checkpoint, and computes its checksums meanwhile.

use std::fs;
use std::path::Path;

use super::background::stand_back;
use super::copying::Copied;
use super::disk::{Disk, Output};
use super::error::CheckpointError;
use super::layout::Digest;

/// Writes what was copied into `folder`, which is made where it is not there. Another thread computes the checksums of its parts.
pub(super) fn write(copied: &Copied, folder: &Path, disk: &Disk) -> Result<Vec<Digest>, CheckpointError> {
    let hash = || -> Vec<Digest> {
        stand_back();
        let parts = copied.parts.iter();
        parts.map(|part| blake3::hash(copied.bytes_of(part)).into()).collect()
    };
    std::thread::scope(|scope| {
        let hashing = scope.spawn(hash);
        let written = write_files(copied, folder, disk);
        let digests = hashing.join().map_err(|_| CheckpointError::Writer)?;
        written.map(|()| digests)
    })
}

fn write_files(copied: &Copied, folder: &Path, disk: &Disk) -> Result<(), CheckpointError> {
    fs::create_dir_all(folder).map_err(CheckpointError::io("make the folder", folder))?;
    for (layout, parts) in copied.by_file() {
        let path = folder.join(&layout.name);
        let file = Output::create(&path, layout.bytes).map_err(CheckpointError::io("make", &path))?;
        for part in parts {
            disk.write_at(&file, copied.bytes_of(part), part.offset)
                .map_err(CheckpointError::io("write", &path))?;
        }
        file.sync().map_err(CheckpointError::io("sync", &path))?;
    }
    Ok(())
}
