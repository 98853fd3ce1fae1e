//! Copies of a training's state in memory that outlive the workers: their folder and their form.
//!
//! The launcher holds memory without a name, and a folder of links to it. There are two slots. Each is a
//! folder with the files of a checkpoint and a file of marks. After every step the workers write the state
//! into the slot that does not hold the state of the step before.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::manifest;

/// The folders of the two slots.
pub const SLOTS: [&str; 2] = ["a", "b"];
/// The file in which each rank marks its step.
pub const MARKS: &str = "marks";
/// All files of a slot.
pub const FILES: [&str; 5] = [
    "model.safetensors",
    "optimizer-00000-of-00001.safetensors",
    "ema.safetensors",
    manifest::FILE_NAME,
    MARKS,
];

/// Bytes of a mark: a step, little-endian.
const MARK: usize = 8;

/// Marks this rank's part of a slot with `step`; 0 means that it is being written.
pub fn mark(slot: &Path, rank: usize, step: u64) -> io::Result<()> {
    let file = File::options().write(true).open(slot.join(MARKS))?;
    file.write_all_at(&step.to_le_bytes(), (rank * MARK) as u64)
}

/// Returns the step of a whole slot: all of `ranks` ranks have marked the same step. Else `None`.
pub fn step_of(slot: &Path, ranks: usize) -> Option<u64> {
    let bytes = std::fs::read(slot.join(MARKS)).ok()?;
    let (marks, rest) = bytes.as_chunks::<MARK>();
    let marks: Vec<u64> = marks.iter().map(|mark| u64::from_le_bytes(*mark)).collect();
    let step = marks.first().copied().filter(|step| *step > 0)?;
    let all = marks.len() == ranks && rest.is_empty() && marks.iter().all(|mark| *mark == step);
    all.then_some(step)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_slot_is_complete_with_the_marks_of_all_ranks() {
        let slot = tempfile::tempdir().unwrap();
        std::fs::write(slot.path().join(MARKS), b"").unwrap();
        assert_eq!(step_of(slot.path(), 2), None);
        mark(slot.path(), 0, 7).unwrap();
        assert_eq!(step_of(slot.path(), 2), None);
        mark(slot.path(), 1, 7).unwrap();
        assert_eq!(step_of(slot.path(), 2), Some(7));
        // The marks of a run with another number of ranks.
        assert_eq!(step_of(slot.path(), 1), None);
        assert_eq!(step_of(slot.path(), 3), None);
        mark(slot.path(), 0, 0).unwrap();
        assert_eq!(step_of(slot.path(), 2), None);
        mark(slot.path(), 0, 9).unwrap();
        assert_eq!(step_of(slot.path(), 2), None);
    }
}
