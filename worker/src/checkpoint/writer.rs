//! Writes this rank's part of a checkpoint, and computes its checksums meanwhile.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use dtrain_common::manifest::CHECKSUM_BYTES;

use super::background::stand_back;
use super::copying::Copied;
use super::disk::{Disk, Output};
use super::error::CheckpointError;

/// BLAKE3 of a part.
pub(super) type Digest = [u8; CHECKSUM_BYTES];

/// Writes what was copied into `folder`, which is made where it is not there, one part after the other; so many threads compute the
/// checksums of the parts.
pub(super) fn write(
    copied: &Copied,
    folder: &Path,
    disk: &Disk,
    hashers: usize,
) -> Result<Vec<Digest>, CheckpointError> {
    let next = AtomicUsize::new(0);
    let hash = || {
        stand_back();
        let mut own = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = copied.parts.get(number) else {
                return own;
            };
            own.push((number, Digest::from(blake3::hash(copied.bytes_of(part)))));
        }
    };
    std::thread::scope(|scope| {
        let hashing: Vec<_> = (0..hashers).map(|_| scope.spawn(hash)).collect();
        let written = write_files(copied, folder, disk);
        let mut digests = vec![Digest::default(); copied.parts.len()];
        for thread in hashing {
            for (number, digest) in thread.join().map_err(|_| CheckpointError::Writer)? {
                digests[number] = digest;
            }
        }
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
