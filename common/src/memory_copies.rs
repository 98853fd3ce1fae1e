//! Copies of a training's state in memory that outlive the workers: their folder and their form.
//!
//! The launcher of each node holds memory without a name, and a folder of links to it. There are two slots.
//! Each is a folder with the files of a checkpoint, a description of the copy and a file of marks. After every
//! step the workers write the state into the slot that does not hold the state of the step before.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::manifest;

/// The folders of the two slots.
pub const SLOTS: [&str; 2] = ["a", "b"];
/// The file that describes the copy; the workers define its content.
pub const COPY: &str = "copy.json";
/// The file with the step of each rank's part.
pub const MARKS: &str = "marks";
/// All files of a slot.
pub const FILES: [&str; 6] = [
    "model.safetensors",
    "optimizer-00000-of-00001.safetensors",
    "ema.safetensors",
    manifest::FILE_NAME,
    COPY,
    MARKS,
];

/// Bytes of a mark: a step, little-endian.
const MARK: usize = 8;

/// Marks the part of `rank` in a slot with `step`; 0 means that it is being written.
pub fn mark(slot: &Path, rank: usize, step: u64) -> io::Result<()> {
    let file = File::options().write(true).open(slot.join(MARKS))?;
    file.write_all_at(&step.to_le_bytes(), (rank * MARK) as u64)
}

/// Returns the marks of all ranks of a slot; 0 for a rank without a mark.
pub fn marks(slot: &Path) -> io::Result<Vec<u64>> {
    let bytes = std::fs::read(slot.join(MARKS))?;
    Ok(bytes.as_chunks::<MARK>().0.iter().map(|mark| u64::from_le_bytes(*mark)).collect())
}

/// Removes all marks of a slot: it holds nothing any more.
pub fn clear(slot: &Path) -> io::Result<()> {
    File::options().write(true).open(slot.join(MARKS))?.set_len(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_rank_has_a_mark_until_the_slot_is_cleared() {
        let slot = tempfile::tempdir().unwrap();
        std::fs::write(slot.path().join(MARKS), b"").unwrap();
        assert!(marks(slot.path()).unwrap().is_empty());
        mark(slot.path(), 2, 7).unwrap();
        mark(slot.path(), 0, 8).unwrap();
        assert_eq!(marks(slot.path()).unwrap(), [8, 0, 7]);
        clear(slot.path()).unwrap();
        assert!(marks(slot.path()).unwrap().is_empty());
    }
}
