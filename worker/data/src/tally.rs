//! What a survey for people counts beside a check: kinds of files, sizes, reasons, and the beginnings of files.

use std::collections::BTreeMap;

use super::decode::FileKind;
use super::error::SampleError;

/// Bytes of a file's beginning that tell most files apart.
const BEGINNING: usize = 4 << 10;

/// Counts of the files of a set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files by what they are (`image`, `mask` or `map`) and their kind.
    pub kinds: BTreeMap<(&'static str, FileKind), usize>,
    /// Images by (width, height), turned as the recipe states.
    pub sizes: BTreeMap<(u32, u32), usize>,
    /// Samples that cannot be used, by the kind of the reason.
    pub faults: BTreeMap<&'static str, usize>,
    /// A key for the beginnings of a sample's images: equal images have equal keys, but not only they. In any order.
    pub beginnings: Vec<(u64, u32)>,
    /// The sample of the next file.
    sample: u32,
}

impl Tally {
    pub(super) fn begin(&mut self, sample: usize) {
        self.sample = sample as u32;
    }

    /// Counts an image of the current sample, of which `bytes` is the whole file or its beginning.
    pub(super) fn image(&mut self, bytes: &[u8], kind: Option<FileKind>) {
        self.file("image", kind);
        let hash = blake3::hash(&bytes[..bytes.len().min(BEGINNING)]);
        let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
        let key = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        match self.beginnings.last_mut() {
            Some((before, sample)) if *sample == self.sample => *before = before.rotate_left(1) ^ key,
            _ => self.beginnings.push((key, self.sample)),
        }
    }

    pub(super) fn file(&mut self, role: &'static str, kind: Option<FileKind>) {
        if let Some(kind) = kind {
            *self.kinds.entry((role, kind)).or_default() += 1;
        }
    }

    pub(super) fn size(&mut self, size: (u32, u32)) {
        *self.sizes.entry(size).or_default() += 1;
    }

    pub(super) fn fail(&mut self, error: &SampleError) {
        *self.faults.entry(error.kind()).or_default() += 1;
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (kind, files) in other.kinds {
            *self.kinds.entry(kind).or_default() += files;
        }
        for (size, images) in other.sizes {
            *self.sizes.entry(size).or_default() += images;
        }
        for (fault, samples) in other.faults {
            *self.faults.entry(fault).or_default() += samples;
        }
        self.beginnings.extend(other.beginnings);
    }
}
