//! The text form of `data.tokenizer`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

dtrain_common::as_text!(Tokenizer);

/// The unit of text that is one token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Tokenizer {
    /// A character; the vocabulary is the set of characters that occur.
    #[default]
    Chars,
    /// A byte; the vocabulary has 256.
    Bytes,
    /// A token of this file, a `tokenizer.json` of Hugging Face.
    File(PathBuf),
}

impl Tokenizer {
    /// The values that are one word.
    pub const NAMES: &'static [&'static str] = &["chars", "bytes"];

    /// Returns whether the tokens are those of a file.
    pub fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

impl FromStr for Tokenizer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "chars" => Ok(Self::Chars),
            "bytes" => Ok(Self::Bytes),
            path if path.ends_with(".json") && !path.contains('\0') => Ok(Self::File(path.into())),
            _ => Err(format!(
                "expected \"chars\", \"bytes\" or the path of a tokenizer.json, such as \"gpt2/tokenizer.json\", got {text:?}"
            )),
        }
    }
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chars => f.write_str("chars"),
            Self::Bytes => f.write_str("bytes"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tokenizers_round_trip_and_errors_list_them() {
        for text in ["chars", "bytes", "/models/gpt2/tokenizer.json", "tokenizer.json"] {
            assert_eq!(text.parse::<Tokenizer>().unwrap().to_string(), text);
        }
        for text in ["", "char", "gpt2", "gpt2/tokenizer.model", "Bytes"] {
            let error = text.parse::<Tokenizer>().unwrap_err();
            assert!(error.contains("\"chars\", \"bytes\"") && error.contains("tokenizer.json"), "{error}");
        }
    }
}
