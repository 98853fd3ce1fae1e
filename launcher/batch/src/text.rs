//! Texts of the user, checked for the place where they are written.

use std::borrow::Cow;
use std::str::FromStr;

/// Why a text cannot be written into a batch script.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum TextError {
    #[error(
        "{text:?} is not a job name: use letters, digits, `.`, `_` and `-`, a letter first, at most {MOST_OF_NAME}"
    )]
    Name { text: String },
    #[error(
        "{text:?} has {wrong:?}, which batch systems do not read there; use letters, digits and {VALUE_SIGNS}"
    )]
    Value { text: String, wrong: char },
    #[error("an empty text has no meaning here; leave the flag out")]
    Empty,
    #[error("{text:?} has the control character {wrong:?}; a script cannot contain it, remove it")]
    Control { text: String, wrong: char },
}

/// The longest job name; Kubernetes allows 63 characters for it and a pod's number.
const MOST_OF_NAME: usize = 52;

/// Signs in the value of a directive: none that a shell or a parser of directives treats specially at its
/// beginning or splits at.
const VALUE_SIGNS: &str = "._-+@:,=/&|*()[]!";

/// The name of a job: a letter, then letters, digits, `.`, `_` and `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes a name from any text, such as the file name of a recipe: other characters become `-`.
    pub fn from_any(text: &str) -> Self {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = text.chars().map(letter).take(MOST_OF_NAME - 1).collect();
        match name.trim_matches('-') {
            name if name.starts_with(|c: char| c.is_ascii_alphabetic()) => Self(name.to_owned()),
            "" => Self("dtrain".to_owned()),
            name => Self(format!("r{name}")),
        }
    }
}

impl FromStr for Name {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
        match begins && text.chars().all(known) && text.len() <= MOST_OF_NAME {
            true => Ok(Self(text.to_owned())),
            false => Err(TextError::Name { text: text.to_owned() }),
        }
    }
}

/// The value of a directive, such as an account: no blanks, quotes or control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value(String);

impl Value {
    /// Returns the value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Value {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        if text.is_empty() {
            return Err(TextError::Empty);
        }
        match text.chars().find(|c| !c.is_ascii_alphanumeric() && !VALUE_SIGNS.contains(*c)) {
            Some(wrong) => Err(TextError::Value { text: text.to_owned(), wrong }),
            None => Ok(Self(text.to_owned())),
        }
    }
}

/// A word of a command: any text without control characters, except newlines and tabs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    text: String,
    quoted: String,
}

impl Word {
    /// Returns the text itself.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the text as one word of a POSIX shell.
    pub fn quoted(&self) -> &str {
        &self.quoted
    }
}

impl FromStr for Word {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let control = |wrong| TextError::Control { text: text.to_owned(), wrong };
        if let Some(wrong) = text.chars().find(|c| c.is_control() && !"\n\t".contains(*c)) {
            return Err(control(wrong));
        }
        let quoted = shlex::try_quote(text).map_err(|_| control('\0'))?;
        Ok(Self { text: text.to_owned(), quoted: Cow::into_owned(quoted) })
    }
}

#[cfg(test)]
mod tests;
