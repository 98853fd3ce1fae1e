//! Texts as tokens of a `tokenizer.json`: long texts in pieces, in several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use dtrain_recipe::Documents;
use serde::{Deserialize, Serialize};

use super::documents::DocumentBounds;
use super::error::DataError;
use super::packed::Packed;
use super::tokenizer::TextTokenizer;

/// Tokens in memory that the processes of a machine share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackedTokens {
    /// For a vocabulary of at most 65,536.
    U16(Packed<u16>),
    /// For a larger one.
    U32(Packed<u32>),
}

impl PackedTokens {
    /// Writes tokens of a vocabulary of `size`.
    pub(super) fn write(tokens: &[u32], size: usize) -> Result<Self, DataError> {
        Ok(match size {
            0..=0x1_0000 => Self::U16(Packed::write(tokens.iter().map(|&token| token as u16))?),
            _ => Self::U32(Packed::write(tokens.iter().copied())?),
        })
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Self::U16(tokens) => tokens.len(),
            Self::U32(tokens) => tokens.len(),
        }
    }

    /// Writes the tokens from `start` on.
    pub(super) fn copy_to(&self, start: usize, out: &mut [i64]) {
        match self {
            Self::U16(tokens) => widen(&tokens[start..start + out.len()], out),
            Self::U32(tokens) => widen(&tokens[start..start + out.len()], out),
        }
    }
}

/// The tokens of texts that are given one after the other.
pub(super) struct Tokenized<'a> {
    tokenizer: &'a TextTokenizer,
    documents: Documents,
    threads: usize,
    pub(super) tokens: Vec<u32>,
    bounds: Vec<[u64; 2]>,
    left_out: u64,
}

/// Bytes of a text that one thread tokenises at once.
const PIECE_BYTES: usize = 256 << 10;

impl<'a> Tokenized<'a> {
    pub(super) fn new(tokenizer: &'a TextTokenizer, documents: Documents, threads: usize) -> Self {
        Self { tokenizer, documents, threads, tokens: Vec::new(), bounds: Vec::new(), left_out: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// Adds the end token between two texts that are one sequence, if the tokenizer has one.
    pub(super) fn separate(&mut self) {
        if self.documents == Documents::None {
            self.tokens.extend(self.tokenizer.id().end);
        }
    }

    /// Adds a file. A document ends with the end token, if the tokenizer has one.
    pub(super) fn add(&mut self, text: &str) -> Result<(), DataError> {
        match self.documents {
            Documents::None => {
                let tokens = self.whole(text)?;
                self.tokens.extend(tokens);
            }
            Documents::Files | Documents::Index => {
                let tokens = self.whole(text)?;
                self.document(text, tokens);
            }
            Documents::Lines => {
                let lines: Vec<&str> =
                    text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).collect();
                let tokenizer = self.tokenizer;
                let encoded = in_threads(lines.len(), self.threads, |at| tokenizer.encode(lines[at], false))?;
                for (line, tokens) in lines.into_iter().zip(encoded) {
                    self.document(line, tokens);
                }
            }
        }
        Ok(())
    }

    fn document(&mut self, text: &str, tokens: Vec<u32>) {
        if text.trim_start().is_empty() {
            return;
        }
        let start = self.count();
        self.tokens.extend(tokens);
        self.tokens.extend(self.tokenizer.id().end);
        match self.count() - start {
            0 | 1 => self.left_out += 1,
            _ => self.bounds.push([start, self.count()]),
        }
    }

    pub(super) fn documents(&mut self) -> Result<Option<DocumentBounds>, DataError> {
        match self.documents {
            Documents::None => Ok(None),
            _ => DocumentBounds::write(std::mem::take(&mut self.bounds), self.left_out).map(Some),
        }
    }

    /// Returns the tokens of a text, which is tokenised in pieces.
    fn whole(&self, text: &str) -> Result<Vec<u32>, DataError> {
        let pieces = self.pieces(text)?;
        let encode = |at: usize| self.tokenizer.encode(&text[pieces[at].clone()], false);
        Ok(in_threads(pieces.len(), self.threads, encode)?.concat())
    }

    /// Cuts a text where the cut changes no token: at line breaks around which both parts together give the tokens of each.
    fn pieces(&self, text: &str) -> Result<Vec<Range<usize>>, DataError> {
        /// Line breaks that are tried for one cut.
        const TRIED: usize = 8;
        let (mut pieces, mut start, mut from) = (Vec::new(), 0, PIECE_BYTES);
        while from < text.len() {
            let breaks = text.as_bytes()[from..].iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            let mut tried = from;
            let mut found = None;
            for (at, _) in breaks.take(TRIED) {
                tried = from + at + 1;
                if tried < text.len() && self.is_harmless(text, tried)? {
                    found = Some(tried);
                    break;
                }
            }
            if tried == from {
                break;
            }
            if let Some(end) = found {
                pieces.push(start..end);
                start = end;
            }
            from = tried + PIECE_BYTES;
        }
        pieces.push(start..text.len());
        Ok(pieces)
    }

    /// Returns whether a cut changes no token around it.
    fn is_harmless(&self, text: &str, cut: usize) -> Result<bool, DataError> {
        const WINDOW: usize = 1 << 10;
        let boundary = |at: usize| (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at));
        let first = boundary(cut.saturating_sub(WINDOW)).unwrap_or_default();
        let last = boundary(cut + WINDOW).unwrap_or_default();
        let whole = self.tokenizer.encode(&text[first..last], false)?;
        let mut parts = self.tokenizer.encode(&text[first..cut], false)?;
        parts.extend(self.tokenizer.encode(&text[cut..last], false)?);
        Ok(whole == parts)
    }
}

/// Computes `count` values in several threads. Returns them in order, or the first error.
pub(super) fn in_threads<T: Send>(
    count: usize,
    threads: usize,
    value: impl Fn(usize) -> Result<T, DataError> + Sync,
) -> Result<Vec<T>, DataError> {
    /// Values that a thread computes before it asks for more.
    const BLOCK: usize = 64;
    let block = BLOCK.min(count.div_ceil(threads.max(1) * 4)).max(1);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let first = next.fetch_add(block, Ordering::Relaxed);
            if first >= count {
                break;
            }
            let values: Result<Vec<T>, DataError> = (first..count.min(first + block)).map(&value).collect();
            done.lock().unwrap_or_else(PoisonError::into_inner).push((first, values));
        }
    };
    thread::scope(|scope| {
        let work = &work;
        for _ in 1..threads.clamp(1, count.div_ceil(block).max(1)) {
            // Without another thread, this one does all.
            let _ = thread::Builder::new().name("tokenize".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    let mut blocks = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    blocks.sort_unstable_by_key(|(first, _)| *first);
    let mut all = Vec::with_capacity(count);
    for (_, values) in blocks {
        all.extend(values?);
    }
    Ok(all)
}

pub(super) fn widen<T: Copy + Into<i64>>(tokens: &[T], out: &mut [i64]) {
    out.iter_mut().zip(tokens).for_each(|(to, &token)| *to = token.into());
}

#[cfg(test)]
mod tests;
