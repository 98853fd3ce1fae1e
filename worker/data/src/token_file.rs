//! Files of token numbers, as nanoGPT (`train.bin`), Megatron-LM and GPT-NeoX (`.bin` with `.idx`) write them.
//!
//! No rank holds a file's tokens in its memory: each sample is read at its place, from the system's cache of files. A file that
//! becomes shorter during a run is then an error of samples; a mapping would end the process with a signal.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dtrain_common::content::Content;
use dtrain_recipe::TokenType;

use super::error::{DataError, SampleError};
use super::regular;
use super::token_index::width;
use super::token_problem::TokenProblem;

/// A file of tokens, opened.
#[derive(Debug, Clone)]
pub struct TokenFile {
    file: Arc<File>,
    path: PathBuf,
    dtype: TokenType,
    count: u64,
    vocabulary: usize,
}

impl PartialEq for TokenFile {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, self.dtype, self.count) == (&other.path, other.dtype, other.count)
    }
}

impl Eq for TokenFile {}

/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 20;

impl TokenFile {
    /// Opens a file whose tokens are below `vocabulary`, which only [`TokenFile::check`] proves.
    pub(super) fn open(path: &Path, dtype: TokenType, vocabulary: usize) -> Result<Self, DataError> {
        let unreadable = |source| DataError::UnreadableTokens(path.to_owned(), source);
        let wrong = |problem| DataError::BadTokens(path.to_owned(), problem);
        let file = regular::open_file(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        if bytes == 0 {
            return Err(wrong(TokenProblem::Empty));
        }
        if let Some(reason) = foreign(path, &file).map_err(unreadable)? {
            return Err(wrong(TokenProblem::Foreign(reason)));
        }
        let width = width(dtype);
        if !bytes.is_multiple_of(width) {
            return Err(wrong(TokenProblem::Length(bytes, width, dtype.as_str())));
        }
        Ok(Self { file: Arc::new(file), path: path.to_owned(), dtype, count: bytes / width, vocabulary })
    }

    /// Returns the number of tokens.
    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// Reads all tokens; one outside of the vocabulary is an error with its place. `progress` gets the tokens that were read.
    pub(super) fn check(&self, progress: &mut dyn FnMut(u64)) -> Result<(), DataError> {
        let mut tokens = vec![0i64; PIECE_BYTES / width(self.dtype) as usize];
        let (mut first, mut outside, mut zeros, mut at) = (None, 0u64, 0u64, 0u64);
        while at < self.count {
            let some = (self.count - at).min(tokens.len() as u64) as usize;
            let read = self.read(at, &mut tokens[..some]);
            read.map_err(|source| DataError::UnreadableTokens(self.path.clone(), source))?;
            let vocabulary = self.vocabulary as i64;
            let bad = tokens[..some].iter().filter(|&&token| token >= vocabulary).count() as u64;
            if bad > 0 && first.is_none() {
                let place = tokens[..some].iter().position(|&token| token >= vocabulary);
                first = place.map(|place| (at + place as u64, tokens[place]));
            }
            outside += bad;
            zeros += tokens[..some].iter().skip(1).step_by(2).filter(|&&token| token == 0).count() as u64;
            at += some as u64;
            progress(at);
        }
        let Some((place, token)) = first else { return Ok(()) };
        // Half of the numbers are the upper halves of small ones.
        let is_wider = self.dtype == TokenType::Uint16 && zeros * 5 > self.count * 2;
        let remedy = match self.dtype {
            TokenType::Uint16 if is_wider => {
                "every second number is 0, as in a file of uint32: set data.dtype = \"uint32\""
            }
            // Two tokens of 16 bits are one large number.
            TokenType::Uint32 if outside * 2 > self.count => {
                "most numbers are, as in a file of uint16: set data.dtype = \"uint16\""
            }
            _ => "name the tokenizer or the vocabulary that made the file (data.tokenizer, data.vocabulary)",
        };
        let problem = TokenProblem::Outside {
            token: token as u32,
            place,
            byte: place * width(self.dtype),
            vocabulary: self.vocabulary,
            more: outside - 1,
            tokens: self.count,
            remedy,
        };
        Err(DataError::BadTokens(self.path.clone(), problem))
    }

    /// Writes the tokens from `start` on.
    pub(super) fn copy_to(&self, start: usize, out: &mut [i64]) -> Result<(), SampleError> {
        self.read(start as u64, out)?;
        match out.iter().position(|&token| token >= self.vocabulary as i64) {
            None => Ok(()),
            Some(at) => Err(SampleError::Token {
                token: out[at] as u32,
                place: (start + at) as u64,
                vocabulary: self.vocabulary,
            }),
        }
    }

    fn read(&self, start: u64, out: &mut [i64]) -> io::Result<()> {
        let width = width(self.dtype);
        let mut bytes = vec![0; out.len() * width as usize];
        self.file.read_exact_at(&mut bytes, start * width)?;
        match self.dtype {
            TokenType::Uint16 => widen(&bytes, out, |token| u16::from_le_bytes(token).into()),
            TokenType::Uint32 => widen(&bytes, out, |token| u32::from_le_bytes(token).into()),
        }
        Ok(())
    }

    /// Returns the hash of the length and of pieces that are spread over the file, which takes no time for any length.
    pub(super) fn digest(&self) -> Result<String, DataError> {
        const PIECES: u64 = 64;
        const BYTES: u64 = 64 << 10;
        let length = self.count * width(self.dtype);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&length.to_le_bytes());
        let mut piece = vec![0; BYTES.min(length) as usize];
        for number in 0..PIECES.min(length.div_ceil(BYTES)) {
            let last = length - piece.len() as u64;
            let at = (u128::from(last) * u128::from(number)
                / u128::from(PIECES.min(length.div_ceil(BYTES)).max(2) - 1)) as u64;
            let read = self.file.read_exact_at(&mut piece, at);
            read.map_err(|source| DataError::UnreadableTokens(self.path.clone(), source))?;
            hasher.update(&piece);
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

fn widen<const W: usize>(bytes: &[u8], out: &mut [i64], value: impl Fn([u8; W]) -> i64) {
    for (to, from) in out.iter_mut().zip(bytes.as_chunks().0) {
        *to = value(*from);
    }
}

/// Says what a file is that has no tokens alone.
fn foreign(path: &Path, file: &File) -> io::Result<Option<String>> {
    let mut start = [0; 512];
    let read = file.read_at(&mut start, 0)?;
    let start = &start[..read];
    Ok(match Content::of(start, &[]) {
        _ if start.starts_with(b"\x93NUMPY") => {
            Some("a NumPy file with a header; write the tokens with `array.tofile(\"train.bin\")`".to_owned())
        }
        _ if start.starts_with(b"MMIDIDX") => Some("the index of a token file; name the .bin file beside it".to_owned()),
        // The header of llm.c and of files made for it: 256 numbers of 32 bits.
        _ if start.starts_with(&20_240_520u32.to_le_bytes()) => {
            Some("a file of llm.c, whose first 1,024 bytes are a header; remove them by `tail -c +1025 OLD.bin > NEW.bin`".to_owned())
        }
        Some(content @ (Content::LfsPointer | Content::Html)) => {
            let remedy = content.remedy(path).map_or_else(String::new, |remedy| format!("; {remedy}"));
            Some(format!("{content}{remedy}"))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests;
