//! Texts to train language models on: one file or a folder of files, as one sequence of tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dtrain_common::recipe::Tokenizer;
use serde::{Deserialize, Serialize};

use super::error::DataError;
use super::regular;
use super::rng::{Domain, SampleRng, below, keyed};
use super::vocabulary::{Tokens, Vocabulary};

/// A text in memory. Clones share it.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// All tokens, in the order of the text.
    pub tokens: Arc<Tokens>,
    pub vocabulary: Vocabulary,
}

impl Corpus {
    /// Reads a text and makes its vocabulary.
    pub fn new(tokenizer: Tokenizer, text: &str) -> Result<Self, DataError> {
        Self::with_vocabulary(Vocabulary::of(tokenizer, text), text)
    }

    /// Reads a text with a vocabulary that must have its characters.
    fn with_vocabulary(vocabulary: Vocabulary, text: &str) -> Result<Self, DataError> {
        Ok(Self { tokens: Arc::new(vocabulary.encode(text)?), vocabulary })
    }

    /// Generates a text of `characters` characters with a small grammar, from the seed alone. A shorter text
    /// is a prefix of a longer one.
    pub fn generated(tokenizer: Tokenizer, characters: usize, seed: u64) -> Result<Self, DataError> {
        let mut rng = keyed(Domain::GeneratedText, seed, 0, 0);
        let mut text = String::new();
        while text.len() < characters {
            sentence(&mut rng, &mut text);
        }
        // The text is ASCII: a byte is a character.
        text.truncate(characters);
        // The vocabulary must not depend on the length.
        Self::with_vocabulary(Vocabulary::of(tokenizer, "\n .abcdefghijklmnopqrstuvwxyz"), &text)
    }
}

/// The text of a run, as rank 0 found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextIndex {
    pub files: Vec<PathBuf>,
    pub vocabulary: Vocabulary,
    /// Tokens of all files together.
    pub tokens: u64,
    /// The FNV-1a hash of the text; the other ranks compare it.
    digest: u64,
}

impl TextIndex {
    /// Reads the text at `root`: a file, or all `*.txt` files of a folder by name, except hidden ones. Adds a
    /// missing line break between two files. A text without two different tokens is an error.
    pub fn scan(root: &Path, tokenizer: Tokenizer) -> Result<(Self, Corpus), DataError> {
        let files = if root.is_dir() { texts(root)? } else { vec![root.to_path_buf()] };
        let text = read_all(&files)?;
        let corpus = Corpus::new(tokenizer, &text)?;
        if !corpus.tokens.differ() {
            return Err(DataError::OneCharacter(root.to_path_buf(), text.chars().next().unwrap_or_default()));
        }
        let index = Self {
            files,
            vocabulary: corpus.vocabulary.clone(),
            tokens: corpus.tokens.count() as u64,
            digest: digest(&text),
        };
        Ok((index, corpus))
    }

    /// Reads the same text on another rank.
    pub fn load(&self) -> Result<Corpus, DataError> {
        let text = read_all(&self.files)?;
        if digest(&text) != self.digest {
            return Err(DataError::TextDiffers(self.files.first().cloned().unwrap_or_default()));
        }
        Corpus::with_vocabulary(self.vocabulary.clone(), &text)
    }
}

fn texts(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |source| DataError::UnreadableText(folder.to_path_buf(), source);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_text = path.extension().is_some_and(|it| it.eq_ignore_ascii_case("txt"));
        if is_text && !hidden && !path.is_dir() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(DataError::NoTexts(folder.to_path_buf()));
    }
    files.sort_unstable();
    Ok(files)
}

fn read_all(files: &[PathBuf]) -> Result<String, DataError> {
    let mut all = String::new();
    for path in files {
        let mut bytes = Vec::new();
        regular::read(path, &mut bytes).map_err(|source| DataError::UnreadableText(path.clone(), source))?;
        let mut text = String::from_utf8(bytes)
            .map_err(|error| DataError::NotUtf8(path.clone(), error.utf8_error().valid_up_to()))?;
        // Some editors begin a text with a byte order mark, which is no part of it.
        if text.starts_with('\u{feff}') {
            text.drain(..'\u{feff}'.len_utf8());
        }
        if text.is_empty() {
            return Err(DataError::EmptyText(path.clone()));
        }
        match all.is_empty() {
            // A single file is the usual case and is not copied.
            true => all = text,
            false => {
                if !all.ends_with('\n') {
                    all.push('\n');
                }
                all.push_str(&text);
            }
        }
    }
    Ok(all)
}

/// Computes FNV-1a of 64 bits: against mistakes, not against attacks.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Adds a sentence, and sometimes a line break. There is something to learn at every distance within it.
fn sentence(rng: &mut SampleRng, text: &mut String) {
    const NOUNS: [&str; 8] = ["cat", "dog", "bird", "king", "river", "child", "tree", "ship"];
    const ADJECTIVES: [&str; 6] = ["small", "red", "old", "quiet", "bright", "wild"];
    const VERBS: [(&str, &str); 6] = [
        ("sees", "see"),
        ("follows", "follow"),
        ("finds", "find"),
        ("likes", "like"),
        ("hears", "hear"),
        ("leaves", "leave"),
    ];
    // The place of each noun, always the same.
    const PLACES: [&str; 8] = [
        "in the house",
        "in the yard",
        "in the air",
        "in the hall",
        "in the valley",
        "at the school",
        "on the hill",
        "on the sea",
    ];
    fn pick(rng: &mut SampleRng, among: usize) -> usize {
        below(rng, among as u32) as usize
    }
    fn phrase(rng: &mut SampleRng, text: &mut String) -> (usize, bool) {
        let (noun, many) = (pick(rng, NOUNS.len()), pick(rng, 2) == 1);
        text.push_str(if many { "the" } else { "a" });
        for _ in 0..pick(rng, 3) {
            text.push(' ');
            text.push_str(ADJECTIVES[pick(rng, ADJECTIVES.len())]);
        }
        text.push(' ');
        let irregular = NOUNS[noun] == "child" && many;
        text.push_str(if irregular { "children" } else { NOUNS[noun] });
        if many && !irregular {
            text.push('s');
        }
        (noun, many)
    }
    let (subject, many) = phrase(rng, text);
    let (one, several) = VERBS[pick(rng, VERBS.len())];
    text.push(' ');
    text.push_str(if many { several } else { one });
    text.push(' ');
    phrase(rng, text);
    if pick(rng, 2) == 1 {
        text.push(' ');
        text.push_str(PLACES[subject]);
    }
    text.push('.');
    text.push(if pick(rng, 4) == 0 { '\n' } else { ' ' });
}

#[cfg(test)]
mod tests;
