//! Measures the disk alone: writes a file from beginning to end and syncs it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::fs::OFlags;

/// Writes per round; the median counts.
pub(super) const WRITES: usize = 3;

/// Bytes per write.
const BLOCK: usize = 8 << 20;

/// The alignment that writes past the cache need, in bytes.
const PAGE: usize = 4096;

/// Writes `bytes` bytes into a file of the folder, through the system's cache and past it. Returns bytes per
/// second of the faster one, with the sync.
pub(super) fn write(folder: &Path, bytes: u64) -> Result<f64> {
    let mut block = vec![0; BLOCK + PAGE];
    let begin = block.as_ptr().align_offset(PAGE);
    let block = &mut block[begin..begin + BLOCK];
    fill(block);
    let through = write_by(OFlags::empty(), folder, bytes, block)?;
    // Some file systems do not support direct writes.
    let past = write_by(OFlags::DIRECT, folder, bytes, block).unwrap_or(0.0);
    Ok(through.max(past))
}

fn write_by(flags: OFlags, folder: &Path, bytes: u64, block: &[u8]) -> Result<f64> {
    let path = folder.join("written");
    let begun = Instant::now();
    let mut options = File::options();
    options.create(true).truncate(true).write(true);
    let mut file = options
        .custom_flags(flags.bits() as i32)
        .open(&path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    let whole = bytes / PAGE as u64 * PAGE as u64;
    let mut left = whole;
    while left > 0 {
        let part = left.min(BLOCK as u64);
        file.write_all(&block[..part as usize])
            .with_context(|| format!("cannot write {}", path.display()))?;
        left -= part;
    }
    file.sync_all().with_context(|| format!("cannot sync {}", path.display()))?;
    let took = begun.elapsed().as_secs_f64();
    drop(file);
    fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    Ok(whole as f64 / took)
}

/// Fills a block with bytes that a disk cannot compress; weights are such bytes too.
fn fill(block: &mut [u8]) {
    let mut state = 1u64;
    for bytes in block.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.copy_from_slice(&state.to_le_bytes());
    }
}
