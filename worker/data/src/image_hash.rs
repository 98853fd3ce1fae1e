//! Hashes of the images of a sample, which show that it occurs twice.

use super::samples::Samples;

impl Samples {
    /// Returns the BLAKE3 hash of the content of a sample's images; None if one cannot be read.
    pub fn content(&self, sample: usize, memory: &mut Vec<u8>) -> Option<[u8; 32]> {
        let mut all = blake3::Hasher::new();
        for files in self.images() {
            self.stored(files, sample).read(memory).ok()?;
            // So that the border between two files counts.
            all.update(blake3::hash(memory).as_bytes());
        }
        Some(*all.finalize().as_bytes())
    }
}
