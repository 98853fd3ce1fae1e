//! Many texts in one piece of memory that the processes of a machine share.

use dtrain_shared_memory::MemoryError;
use serde::{Deserialize, Serialize};

use super::packed::Packed;

/// Texts in one piece of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Texts {
    /// Where each text ends.
    pub(super) ends: Packed<u64>,
    pub(super) bytes: Packed<u8>,
}

impl Texts {
    pub(super) fn write<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Result<Self, MemoryError> {
        let ends = texts.clone().scan(0, |end, text| {
            *end += text.len() as u64;
            Some(*end)
        });
        Ok(Self { ends: Packed::write(ends)?, bytes: Packed::write(texts.flat_map(str::bytes))? })
    }

    /// Returns the number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns a text.
    pub fn get(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        let bytes = self.bytes.get(start as usize..self.ends[at] as usize);
        // Another process wrote a text there.
        bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> + Clone {
        (0..self.len()).map(|at| self.get(at))
    }

    /// Returns the texts for which `is_kept`.
    pub(super) fn kept(&self, is_kept: &dyn Fn(usize) -> bool) -> Result<Self, MemoryError> {
        Self::write((0..self.len()).filter(|&at| is_kept(at)).map(|at| self.get(at)))
    }
}
