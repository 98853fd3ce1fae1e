//! Files of token numbers, as nanoGPT (`train.bin`), Megatron-LM and GPT-NeoX (`.bin` with `.idx`) write them.
//!
//! No rank holds a file's tokens in its memory: each sample is read at its place, from the system's cache of files. A file that
//! becomes shorter during a run is then an error of samples; a mapping would end the process with a signal.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dtrain_common::content::Content;
use dtrain_recipe::{Documents, TokenType};
use serde::{Deserialize, Serialize};

use super::documents::DocumentBounds;
use super::error::{DataError, SampleError};
use super::names::listed;
use super::regular;
use super::token_index::{TokenIndex, width};
use super::tokenizer::TokenizerFiles;
use super::vocabulary::Vocabulary;

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenProblem {
    #[error(
        "it has {0} bytes, which is no multiple of the {1} bytes of {2}; set data.dtype to the type of its numbers, or copy it again"
    )]
    Length(u64, u64, &'static str),
    #[error("it is empty; remove it, or set data.root to another file")]
    Empty,
    #[error("it is {0}")]
    Foreign(String),
    #[error(
        "the token {token} at place {place} (byte {byte}) is outside of the vocabulary of {vocabulary} tokens, and so are {more} \
         others of {tokens}; {remedy}"
    )]
    Outside {
        token: u32,
        place: u64,
        byte: u64,
        vocabulary: usize,
        more: u64,
        tokens: u64,
        remedy: &'static str,
    },
    #[error("its index {}: {}", .0.display(), .1)]
    Index(PathBuf, String),
    #[error("the index {} cannot be read: {}", .0.display(), .1)]
    UnreadableIndex(PathBuf, io::Error),
    #[error("its index states {0} tokens of {1}, but the file has {2} bytes; copy both again")]
    OtherLength(u64, &'static str, u64),
    #[error("its index states tokens of {0}, but data.dtype is {1:?}; set data.dtype = {0:?}")]
    OtherType(&'static str, &'static str),
    #[error("data.documents = \"index\" needs its index {}, which is missing; copy it beside the file, or set data.documents = \"none\"", .0.display())]
    NoIndex(PathBuf),
    #[error(
        "neither {0} nor {0}.bin is in this folder; it has {1}; set data.train and data.test to the names of its files"
    )]
    NoSet(String, String),
}

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
    fn open(path: &Path, dtype: TokenType, vocabulary: usize) -> Result<Self, DataError> {
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
    fn check(&self, progress: &mut dyn FnMut(u64)) -> Result<(), DataError> {
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
    fn digest(&self) -> Result<String, DataError> {
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

/// The tokens of one set of one source, as rank 0 found them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenSource {
    /// The file; a list, since a survey's fingerprint counts only the names of files.
    files: [PathBuf; 1],
    dtype: TokenType,
    /// All tokens.
    pub tokens: u64,
    digest: String,
    /// The borders of its documents; None if it is one sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<DocumentBounds>,
}

/// The token files of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenSources {
    pub vocabulary: Vocabulary,
    /// The tokenizer that made them, if it is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerFiles>,
    pub sources: Vec<TokenSets>,
}

/// The files of one source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenSets {
    /// The training tokens, or all.
    pub train: TokenSource,
    /// The test tokens; None if the end of the others is the test part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<TokenSource>,
    /// Its weight in a mixture.
    pub weight: Option<f64>,
}

impl TokenSource {
    /// Returns the files of the training and of the test set in a folder; a root that is a file is both.
    pub fn files(root: &Path, train: &str, test: &str) -> Result<(PathBuf, Option<PathBuf>), DataError> {
        if !root.is_dir() {
            return Ok((root.to_owned(), None));
        }
        let file = |set: &str| {
            let paths = [root.join(set), root.join(format!("{set}.bin"))];
            paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
                let names = fs::read_dir(root).into_iter().flatten().flatten();
                let mut names: Vec<_> =
                    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
                names.retain(|name| name.ends_with(".bin"));
                names.sort();
                let has = if names.is_empty() { "no .bin files".to_owned() } else { listed(&names) };
                DataError::BadTokens(root.to_owned(), TokenProblem::NoSet(set.to_owned(), has))
            })
        };
        Ok((file(train)?, Some(file(test)?)))
    }

    /// Reads and checks a file, with its index if documents are wanted. `progress` gets the tokens that were read.
    pub fn scan(
        path: &Path,
        dtype: TokenType,
        documents: Documents,
        vocabulary: usize,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, DataError> {
        let wrong = |problem| DataError::BadTokens(path.to_owned(), problem);
        let place = path.with_extension("idx");
        let index = match fs::read(&place) {
            Ok(bytes) => Some(TokenIndex::parse(&place, &bytes).map_err(wrong)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound && documents != Documents::Index => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(wrong(TokenProblem::NoIndex(place)));
            }
            Err(error) => return Err(wrong(TokenProblem::UnreadableIndex(place, error))),
        };
        if let Some(index) = index.as_ref().filter(|index| index.dtype != dtype) {
            return Err(wrong(TokenProblem::OtherType(index.dtype.as_str(), dtype.as_str())));
        }
        let file = TokenFile::open(path, dtype, vocabulary)?;
        if let Some(index) = index.as_ref().filter(|index| index.tokens != file.count) {
            let bytes = file.count * width(dtype);
            return Err(wrong(TokenProblem::OtherLength(index.tokens, dtype.as_str(), bytes)));
        }
        file.check(progress)?;
        let documents = match index.filter(|_| documents == Documents::Index) {
            None => None,
            Some(index) => {
                let all = index.documents.len();
                let mut bounds = index.documents;
                bounds.retain(|[start, end]| end - start > 1);
                let left_out = (all - bounds.len()) as u64;
                Some(DocumentBounds::write(bounds, left_out)?)
            }
        };
        Ok(Self { files: [path.to_owned()], dtype, tokens: file.count, digest: file.digest()?, documents })
    }

    /// Opens the file as it was scanned, on any rank.
    pub fn open(&self, vocabulary: usize) -> Result<TokenFile, DataError> {
        let [path] = &self.files;
        let file = TokenFile::open(path, self.dtype, vocabulary)?;
        match file.count == self.tokens && file.digest()? == self.digest {
            true => Ok(file),
            false => Err(DataError::TextDiffers(path.clone())),
        }
    }
}

#[cfg(test)]
mod tests;
