//! From text to numbers and back.

use std::collections::BTreeSet;

use dtrain_common::recipe::Tokenizer;
use serde::{Deserialize, Serialize};

use super::error::DataError;

/// The meaning of the numbers. Rank 0 makes it and sends it to the others; checkpoints keep it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vocabulary {
    /// The characters in the order of their code points; a character's number is its index.
    Chars(String),
    Bytes,
}

impl Vocabulary {
    /// Returns the vocabulary of a text.
    pub fn of(tokenizer: Tokenizer, text: &str) -> Self {
        match tokenizer {
            Tokenizer::Chars => Self::Chars(text.chars().collect::<BTreeSet<char>>().into_iter().collect()),
            Tokenizer::Bytes => Self::Bytes,
        }
    }

    /// Returns the number of different tokens.
    pub fn size(&self) -> usize {
        match self {
            Self::Chars(characters) => characters.chars().count(),
            Self::Bytes => 256,
        }
    }

    /// Returns the numbers of a text.
    pub fn encode(&self, text: &str) -> Result<Tokens, DataError> {
        let Self::Chars(characters) = self else {
            return Ok(Tokens::U16(text.bytes().map(u16::from).collect()));
        };
        let characters: Vec<char> = characters.chars().collect();
        // Most texts are mostly ASCII, which has a table; other characters use a binary search.
        const ABSENT: u32 = u32::MAX;
        let mut ascii = [ABSENT; 128];
        for (number, &character) in (0..).zip(&characters) {
            if character.is_ascii() {
                ascii[character as usize] = number;
            }
        }
        let number = |(at, character): (usize, char)| {
            let found = match ascii.get(character as usize) {
                Some(&number) => (number != ABSENT).then_some(number),
                None => characters.binary_search(&character).ok().map(|number| number as u32),
            };
            found.ok_or(DataError::UnknownCharacter(character, at, characters.len()))
        };
        let numbers = text.chars().enumerate().map(number);
        if characters.len() > 1 << 16 {
            return numbers.collect::<Result<_, _>>().map(Tokens::U32);
        }
        numbers.map(|number| number.map(|it| it as u16)).collect::<Result<_, _>>().map(Tokens::U16)
    }

    /// Returns the text of some numbers. Unknown numbers and broken bytes become U+FFFD.
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
        }
    }
}

/// The numbers of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokens {
    /// For a vocabulary of at most 65,536.
    U16(Vec<u16>),
    /// For a larger vocabulary.
    U32(Vec<u32>),
}

impl Tokens {
    /// Returns the number of tokens.
    pub fn count(&self) -> usize {
        match self {
            Self::U16(tokens) => tokens.len(),
            Self::U32(tokens) => tokens.len(),
        }
    }

    /// Returns whether there are two different tokens. Otherwise there is nothing to learn.
    pub(super) fn differ(&self) -> bool {
        match self {
            Self::U16(tokens) => tokens.windows(2).any(|pair| pair[0] != pair[1]),
            Self::U32(tokens) => tokens.windows(2).any(|pair| pair[0] != pair[1]),
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

fn widen<T: Copy + Into<i64>>(tokens: &[T], out: &mut [i64]) {
    out.iter_mut().zip(tokens).for_each(|(to, &token)| *to = token.into());
}

#[cfg(test)]
mod tests;
