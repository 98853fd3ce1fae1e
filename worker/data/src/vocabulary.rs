//! From text to numbers and back.

use std::ops::Range;

use dtrain_recipe::Tokenizer;
use serde::{Deserialize, Serialize};

use super::error::{DataError, SampleError};
use super::token_file::TokenFile;
use super::tokenized::{PackedTokens, widen};
use super::tokenizer::TokenizerId;

/// The meaning of the numbers. Rank 0 makes it and sends it to the others; checkpoints keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vocabulary {
    /// The characters in the order of their code points; a character's number is its index.
    Chars(String),
    Bytes,
    /// The tokens of a tokenizer's file.
    Tokenizer(TokenizerId),
    /// Numbers in a token file, of which only the count is known.
    Numbers(usize),
}

impl Vocabulary {
    /// Returns the vocabulary of a text.
    pub fn of(tokenizer: Tokenizer, text: &str) -> Self {
        let mut characters = Characters::new(tokenizer);
        characters.add(text);
        characters.vocabulary()
    }

    /// Returns the number of different tokens.
    pub fn size(&self) -> usize {
        match self {
            Self::Chars(characters) => characters.chars().count(),
            Self::Bytes => 256,
            Self::Tokenizer(id) => id.size,
            Self::Numbers(count) => *count,
        }
    }

    /// Returns the numbers of a text.
    pub fn encode(&self, text: &str) -> Result<Tokens, DataError> {
        let mut encoder = Encoder::new(self, text.len());
        encoder.add(text)?;
        Ok(encoder.finish())
    }

    /// Returns the text of some numbers, or the numbers if their text is unknown here. Unknown numbers and broken bytes become
    /// U+FFFD.
    pub fn decode(&self, numbers: impl IntoIterator<Item = u32>) -> String {
        match self {
            Self::Chars(characters) => {
                let characters: Vec<char> = characters.chars().collect();
                let character = |number: u32| characters.get(number as usize).copied();
                numbers
                    .into_iter()
                    .map(|number| character(number).unwrap_or(char::REPLACEMENT_CHARACTER))
                    .collect()
            }
            Self::Bytes => {
                // 0xff is never part of UTF-8.
                let byte = |number: u32| u8::try_from(number).unwrap_or(0xff);
                let bytes: Vec<u8> = numbers.into_iter().map(byte).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::Tokenizer(_) | Self::Numbers(_) => {
                numbers.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// The tokens of a text that is read in pieces, before their numbers are known.
#[derive(Debug)]
pub(super) struct Characters {
    tokenizer: Tokenizer,
    /// One bit for each code point.
    seen: Vec<u64>,
    ascii: [bool; 128],
    /// The first character, and whether another one follows.
    first: Option<char>,
    differ: bool,
    /// The number of tokens so far.
    pub(super) count: u64,
}

impl Characters {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        let seen = vec![0; char::MAX as usize / 64 + 1];
        Self { tokenizer, seen, ascii: [false; 128], first: None, differ: false, count: 0 }
    }

    pub(super) fn add(&mut self, piece: &str) {
        if !self.differ {
            self.first = self.first.or_else(|| piece.chars().next());
            self.differ = piece.chars().any(|character| Some(character) != self.first);
        }
        if self.tokenizer == Tokenizer::Bytes {
            self.count += piece.len() as u64;
            return;
        }
        let mut rest = piece;
        while !rest.is_empty() {
            let (ascii, others, after) = split(rest);
            for byte in ascii.bytes() {
                self.ascii[usize::from(byte)] = true;
            }
            self.count += ascii.len() as u64;
            for character in others.chars() {
                self.seen[character as usize / 64] |= 1 << (character as usize % 64);
                self.count += 1;
            }
            rest = after;
        }
    }

    /// Returns the only character of a text without any other.
    pub(super) fn only(&self) -> Option<char> {
        self.first.filter(|_| !self.differ)
    }

    pub(super) fn vocabulary(&self) -> Vocabulary {
        if self.tokenizer == Tokenizer::Bytes {
            return Vocabulary::Bytes;
        }
        let is_seen = |&character: &char| match self.ascii.get(character as usize) {
            Some(&seen) => seen,
            None => self.seen[character as usize / 64] >> (character as usize % 64) & 1 == 1,
        };
        Vocabulary::Chars(('\0'..=char::MAX).filter(is_seen).collect())
    }
}

/// Turns a text that is read in pieces into numbers.
#[derive(Debug)]
pub(super) struct Encoder {
    /// None for bytes.
    characters: Option<Vec<char>>,
    /// The numbers of ASCII characters.
    ascii: [u32; 128],
    tokens: Tokens,
}

/// The number of a character that a vocabulary lacks.
const ABSENT: u32 = u32::MAX;

impl Encoder {
    /// Makes room for `tokens` tokens, or for fewer, if they are more than there can be.
    pub(super) fn new(vocabulary: &Vocabulary, tokens: usize) -> Self {
        let characters = match vocabulary {
            Vocabulary::Chars(characters) => Some(characters.chars().collect::<Vec<char>>()),
            Vocabulary::Bytes => None,
            // Their tokens are no characters.
            Vocabulary::Tokenizer(_) | Vocabulary::Numbers(_) => Some(Vec::new()),
        };
        let mut ascii = [ABSENT; 128];
        for (number, &character) in (0..).zip(characters.iter().flatten()) {
            if character.is_ascii() {
                ascii[character as usize] = number;
            }
        }
        let tokens = match vocabulary.size() {
            0..=0x100 => Tokens::U8(Vec::with_capacity(tokens)),
            0x101..=0x1_0000 => Tokens::U16(Vec::with_capacity(tokens)),
            _ => Tokens::U32(Vec::with_capacity(tokens)),
        };
        Self { characters, ascii, tokens }
    }

    pub(super) fn add(&mut self, piece: &str) -> Result<(), DataError> {
        let Self { characters, ascii, tokens } = self;
        let Some(characters) = characters else {
            if let Tokens::U8(tokens) = tokens {
                tokens.extend_from_slice(piece.as_bytes());
            }
            return Ok(());
        };
        match tokens {
            Tokens::U8(tokens) => encode(piece, characters, ascii, tokens, |number| number as u8),
            Tokens::U16(tokens) => encode(piece, characters, ascii, tokens, |number| number as u16),
            Tokens::U32(tokens) => encode(piece, characters, ascii, tokens, |number| number),
            // Made of a tokenizer or a file, not by an encoder.
            Tokens::Shared(_) | Tokens::File(_) => Ok(()),
        }
    }

    pub(super) fn finish(self) -> Tokens {
        self.tokens
    }
}

fn encode<T: Copy>(
    piece: &str,
    characters: &[char],
    ascii: &[u32; 128],
    tokens: &mut Vec<T>,
    narrow: impl Fn(u32) -> T,
) -> Result<(), DataError> {
    let unknown = |character, tokens: &Vec<T>| {
        Err(DataError::UnknownCharacter(character, tokens.len(), characters.len()))
    };
    let absent = ascii.map(|number| number == ABSENT);
    let numbers = ascii.map(&narrow);
    let mut rest = piece;
    while !rest.is_empty() {
        let (plain, others, after) = split(rest);
        // Most texts are mostly ASCII, which has a table; other characters use a binary search.
        let is_absent = |byte: u8| absent[usize::from(byte)];
        // No end at the first: nearly always no byte is absent.
        if plain.bytes().fold(false, |any, byte| any | is_absent(byte)) {
            let known = plain.bytes().position(is_absent).unwrap_or_default();
            tokens.extend(plain[..known].bytes().map(|byte| numbers[usize::from(byte)]));
            return unknown(plain.as_bytes()[known].into(), tokens);
        }
        tokens.extend(plain.bytes().map(|byte| numbers[usize::from(byte)]));
        for character in others.chars() {
            match characters.binary_search(&character) {
                Ok(number) => tokens.push(narrow(number as u32)),
                Err(_) => return unknown(character, tokens),
            }
        }
        rest = after;
    }
    Ok(())
}

/// Splits a text into its ASCII characters at the start, the others after them, and the rest.
fn split(text: &str) -> (&str, &str, &str) {
    const BLOCK: usize = 32;
    let bytes = text.as_bytes();
    // A block is checked at once.
    let blocks = BLOCK * bytes.chunks_exact(BLOCK).take_while(|block| block.is_ascii()).count();
    let ascii = bytes[blocks..].iter().take_while(|byte| byte.is_ascii()).count();
    let (ascii, rest) = text.split_at(blocks + ascii);
    let others = rest.bytes().take_while(|byte| !byte.is_ascii()).count();
    let (others, rest) = rest.split_at(others);
    (ascii, others, rest)
}

/// The numbers of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokens {
    /// For a vocabulary of at most 256.
    U8(Vec<u8>),
    /// For a vocabulary of at most 65,536.
    U16(Vec<u16>),
    /// For a larger vocabulary.
    U32(Vec<u32>),
    /// In memory that the processes of a machine share.
    Shared(PackedTokens),
    /// In a file.
    File(TokenFile),
}

impl Tokens {
    /// Returns the number of tokens.
    pub fn count(&self) -> usize {
        match self {
            Self::U8(tokens) => tokens.len(),
            Self::U16(tokens) => tokens.len(),
            Self::U32(tokens) => tokens.len(),
            Self::Shared(tokens) => tokens.count(),
            Self::File(file) => file.count(),
        }
    }

    /// Returns the BLAKE3 hash of some tokens. Only a file may fail.
    pub fn hash(&self, range: Range<usize>) -> Result<[u8; 32], SampleError> {
        let mut tokens = vec![0; range.len()];
        self.copy_to(range.start, &mut tokens)?;
        Ok(*blake3::hash(bytemuck::cast_slice(&tokens)).as_bytes())
    }

    /// Writes all tokens; panics if `out` has another length. Only a file may fail.
    pub fn copy_all(&self, out: &mut [i64]) -> Result<(), SampleError> {
        assert_eq!(out.len(), self.count(), "room for all tokens");
        self.copy_to(0, out)
    }

    /// Writes the tokens from `start` on. Only a file may fail.
    pub(super) fn copy_to(&self, start: usize, out: &mut [i64]) -> Result<(), SampleError> {
        match self {
            Self::U8(tokens) => widen(&tokens[start..start + out.len()], out),
            Self::U16(tokens) => widen(&tokens[start..start + out.len()], out),
            Self::U32(tokens) => widen(&tokens[start..start + out.len()], out),
            Self::Shared(tokens) => tokens.copy_to(start, out),
            Self::File(file) => file.copy_to(start, out)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
