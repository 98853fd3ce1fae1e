//! Tokenizers of Hugging Face: `tokenizer.json`, with the files beside it.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use dtrain_common::content::Content;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::caught::caught;
use super::error::DataError;
use super::packed::Packed;
use super::regular;

/// The name of a tokenizer's file in a checkpoint.
pub const FILE: &str = "tokenizer.json";
/// The files beside it that state special tokens and the form of chats.
const BESIDE: [&str; 2] = [CONFIG, TEMPLATE];
pub(super) const CONFIG: &str = "tokenizer_config.json";
pub(super) const TEMPLATE: &str = "chat_template.jinja";
/// Larger files are no tokenizers.
const MOST_BYTES: u64 = 256 << 20;
/// The end tokens of usual vocabularies, for tokenizers without a `tokenizer_config.json` that states one.
const USUAL_ENDS: [&str; 5] = ["<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>"];

const USUAL_PADS: [&str; 2] = ["[PAD]", "<pad>"];

/// What identifies a tokenizer: the vocabulary of a model in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerId {
    /// The largest number of a token, plus one.
    pub size: usize,
    /// The BLAKE3 hash of `tokenizer.json`.
    pub hash: String,
    /// The number of the token that ends a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<u32>,
}

/// The files of a tokenizer, by name, in memory that the processes of a machine share. Checkpoints keep copies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenizerFiles {
    content: BTreeMap<String, Packed<u8>>,
}

impl TokenizerFiles {
    /// Reads a `tokenizer.json` and the files beside it.
    fn read(path: &Path) -> Result<Self, DataError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut content = BTreeMap::from([(FILE.to_owned(), read(path)?)]);
        for name in BESIDE {
            let beside = folder.join(name);
            if beside.is_file() {
                content.insert(name.to_owned(), read(&beside)?);
            }
        }
        Ok(Self { content })
    }

    /// Returns a `tokenizer.json` without files beside it.
    pub fn alone(bytes: Vec<u8>) -> Result<Self, DataError> {
        Ok(Self { content: BTreeMap::from([(FILE.to_owned(), Packed::write(bytes)?)]) })
    }

    /// Returns the names and contents of the files.
    pub fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.content.iter().map(|(name, bytes)| (name.as_str(), &**bytes))
    }

    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.content.get(name).map(|bytes| &**bytes)
    }
}

fn read(path: &Path) -> Result<Packed<u8>, DataError> {
    let mut bytes = Vec::new();
    let file = regular::open_file(path);
    let read = file.and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes));
    let read = read.map_err(|source| DataError::UnreadableTokenizer(path.to_owned(), source))?;
    if read as u64 > MOST_BYTES {
        let reason = format!("it has more than {} MiB; {REMEDY}", MOST_BYTES >> 20);
        return Err(DataError::BadTokenizer(path.to_owned(), reason));
    }
    Ok(Packed::write(bytes)?)
}

/// A tokenizer, loaded.
pub struct TextTokenizer {
    inner: tokenizers::Tokenizer,
    /// Its place in messages.
    path: PathBuf,
    id: TokenizerId,
    files: TokenizerFiles,
    config: Value,
    /// The number of the token that fills a text.
    pad: u32,
}

impl TextTokenizer {
    /// Reads a `tokenizer.json` with the files beside it. Needs no network.
    pub fn read(path: &Path) -> Result<Self, DataError> {
        Self::load(path, TokenizerFiles::read(path)?)
    }

    /// Loads the files of a tokenizer; `path` is its place in messages.
    pub fn load(path: &Path, files: TokenizerFiles) -> Result<Self, DataError> {
        let wrong = |reason: String| DataError::BadTokenizer(path.to_owned(), reason);
        let bytes = files.get(FILE).unwrap_or_default();
        let text = std::str::from_utf8(bytes).map_err(|_| wrong(foreign(bytes)))?;
        // The library panics on some files that lack a part.
        let inner = caught(|| tokenizers::Tokenizer::from_str(text));
        let inner = inner.ok_or_else(|| wrong(format!("it lacks a part; {REMEDY}")))?;
        let mut inner = inner.map_err(|error| match Content::of(bytes, &[]) {
            None | Some(Content::Json) => wrong(format!("{}; {REMEDY}", first_line(&error.to_string()))),
            Some(_) => wrong(foreign(bytes)),
        })?;
        // The lengths are those of the model, not of an earlier program.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| wrong(format!("{error}; {REMEDY}")))?;
        let largest = inner.get_vocab(true).into_values().max();
        let size = largest.ok_or_else(|| wrong(format!("it has no tokens; {REMEDY}")))? as usize + 1;
        let config = match files.get(CONFIG).map(serde_json::from_slice) {
            None => Value::Null,
            Some(read) => read.map_err(|error| {
                let beside = path.with_file_name(CONFIG);
                DataError::BadTokenizer(beside, format!("{error}; copy it again, or remove it"))
            })?,
        };
        let special = |name: &str| inner.get_added_vocabulary().is_special_token(name);
        let usual = || USUAL_ENDS.into_iter().find(|name| special(name)).map(str::to_owned);
        let end = text_of(&config["eos_token"]).or_else(usual).and_then(|name| inner.token_to_id(&name));
        let usual = || USUAL_PADS.into_iter().find(|name| special(name)).map(str::to_owned);
        let pad = text_of(&config["pad_token"]).or_else(usual).and_then(|name| inner.token_to_id(&name));
        let id = TokenizerId { size, hash: blake3::hash(bytes).to_hex().to_string(), end };
        Ok(Self { inner, path: path.to_owned(), id, files, config, pad: pad.unwrap_or_default() })
    }

    /// Returns what identifies it.
    pub fn id(&self) -> &TokenizerId {
        &self.id
    }

    /// Returns its files.
    pub fn files(&self) -> &TokenizerFiles {
        &self.files
    }

    /// Returns the number of the token that fills a text: the stated or usual one, else 0.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `tokenizer_config.json`, or null.
    pub(super) fn config(&self) -> &Value {
        &self.config
    }

    /// Returns the tokens of a text. `special` adds those that the tokenizer puts around a text, such as one that begins it.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, DataError> {
        let encoded = self.run("encode a text", || self.inner.encode_fast(text, special))?;
        Ok(encoded.get_ids().to_vec())
    }

    /// Returns the tokens of a text to continue: with special tokens that begin a text, and without those that end one.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>, DataError> {
        // Special tokens before nothing are found before anything.
        let some = if text.is_empty() { "x" } else { text };
        let (mut tokens, plain) = (self.encode(some, true)?, self.encode(some, false)?);
        let kept = if text.is_empty() { 0 } else { plain.len() };
        if let Some(begin) = tokens.windows(plain.len().max(1)).position(|window| window == plain) {
            tokens.truncate(begin + kept);
        }
        Ok(tokens)
    }

    /// As [`TextTokenizer::encode`] without the tokens around a text; with the bytes of the text that each token is made of.
    pub(super) fn encode_with_places(&self, text: &str) -> Result<Vec<(u32, Range<usize>)>, DataError> {
        let encoded = self.run("encode a text", || self.inner.encode(text, false))?;
        let places = encoded.get_offsets().iter().map(|&(start, end)| start..end);
        Ok(encoded.get_ids().iter().copied().zip(places).collect())
    }

    /// Returns the text of tokens, without special ones. Unknown numbers are left out.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, DataError> {
        self.run("decode tokens", || self.inner.decode(tokens, true))
    }

    /// Runs the library, which panics if tokens that its parts name are missing.
    fn run<T>(&self, what: &str, run: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, DataError> {
        let problem = match caught(run) {
            Some(Ok(value)) => return Ok(value),
            Some(Err(error)) => first_line(&error.to_string()).to_owned(),
            None => "a token is missing".to_owned(),
        };
        let reason = format!("it cannot {what}: {problem}; {REMEDY}");
        Err(DataError::BadTokenizer(self.path.clone(), reason))
    }

    /// Returns the number of a token by its text.
    pub fn number(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}

const REMEDY: &str = "name a tokenizer.json that Hugging Face's tokenizers has written";

fn foreign(bytes: &[u8]) -> String {
    match Content::of(bytes, &[]) {
        Some(content) => format!("it is {content}; {REMEDY}"),
        None => format!("it is no JSON; {REMEDY}"),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Returns the text of a special token, which is a text or an object with it.
pub(super) fn text_of(token: &Value) -> Option<String> {
    token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
}

#[cfg(test)]
pub(crate) mod tests;
