//! What the disk can do with nothing beside: a file, written from beginning to end, and synced.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

/// How often in a round; the middle one counts.
pub(super) const WRITES: usize = 3;

/// Bytes of a write.
const BLOCK: usize = 8 << 20;

/// Writes so many bytes into a file of the folder, and returns bytes per second, with the sync.
pub(super) fn write(folder: &Path, bytes: u64) -> Result<f64> {
    let block = block();
    let path = folder.join("written");
    let begun = Instant::now();
    let mut file = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut left = bytes;
    while left > 0 {
        let part = left.min(BLOCK as u64);
        file.write_all(&block[..part as usize])
            .with_context(|| format!("cannot write {}", path.display()))?;
        left -= part;
    }
    file.sync_all()
        .with_context(|| format!("cannot sync {}", path.display()))?;
    let took = begun.elapsed().as_secs_f64();
    drop(file);
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(bytes as f64 / took)
}

/// Bytes that no disk can make shorter, as weights are.
fn block() -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..BLOCK / 8).flat_map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn all_bytes_are_written_and_removed_again() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(folder.path(), 3 * BLOCK as u64 / 2).unwrap() > 0.0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
