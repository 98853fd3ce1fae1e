//! Arrays: several runs of one script.

use crate::text::{TextError, Word};
use std::str::FromStr;

/// More runs are probably a typing error; Slurm's default limit is a thousand.
pub(crate) const MOST_RUNS: u32 = 1000;

/// Why a text is not an array.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum ArrayError {
    #[error("{text:?} is neither a number of runs nor a key with values; write `8` or `optim.lr=0.1,0.01`")]
    Form { text: String },
    #[error("an array has 2 to {MOST_RUNS} runs, not {runs}; for one run leave --array out, and use --set")]
    Runs { runs: usize },
    #[error("the key {key:?} is not a key of a recipe; write `SECTION.KEY=VALUE,VALUE`")]
    Key { key: String },
    #[error("no run may start with `%0`; write `%N` with the most runs at once, or leave it out")]
    NoneAtOnce,
    #[error("the array has an empty value; remove the comma beside it")]
    EmptyValue,
    #[error(transparent)]
    Text(#[from] TextError),
}

/// What `--array` says: `8%2`, `optim.lr=0.1,0.01%1`, or `%2` for several recipes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayFlag {
    /// `None`: the runs are those of the recipes.
    pub array: Option<Array>,
    /// The most runs at once.
    pub runs_at_once: Option<u32>,
}

impl FromStr for ArrayFlag {
    type Err = ArrayError;

    fn from_str(text: &str) -> Result<Self, ArrayError> {
        let at_once =
            text.rsplit_once('%').and_then(|(runs, number)| Some((runs, number.parse::<u32>().ok()?)));
        match at_once {
            Some((_, 0)) => Err(ArrayError::NoneAtOnce),
            Some(("", number)) => Ok(Self { array: None, runs_at_once: Some(number) }),
            Some((runs, number)) => Ok(Self { array: Some(runs.parse()?), runs_at_once: Some(number) }),
            None => Ok(Self { array: Some(text.parse()?), runs_at_once: None }),
        }
    }
}

/// Several runs, numbered from 0; each has its own run directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Array {
    /// The same command this number of times.
    Runs(u32),
    /// One run for each value of a recipe's key.
    Sweep { key: String, values: Vec<Word> },
}

impl Array {
    /// Returns the number of runs, at least 2.
    pub fn runs(&self) -> u32 {
        match self {
            Self::Runs(runs) => *runs,
            Self::Sweep { values, .. } => values.len() as u32,
        }
    }
}

impl FromStr for Array {
    type Err = ArrayError;

    /// Reads `8`, or `optim.lr=0.1,0.01`. A comma inside brackets or quotes belongs to a value.
    fn from_str(text: &str) -> Result<Self, ArrayError> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let runs = text.parse().unwrap_or(usize::MAX);
            return allowed(runs).map(Self::Runs);
        }
        let Some((key, values)) = text.split_once('=') else {
            return Err(ArrayError::Form { text: text.to_owned() });
        };
        let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if key.is_empty() || !key.chars().all(known) {
            return Err(ArrayError::Key { key: key.to_owned() });
        }
        let values = split_values(values);
        if values.iter().any(|value| value.trim().is_empty()) {
            return Err(ArrayError::EmptyValue);
        }
        allowed(values.len())?;
        let values = values.into_iter().map(|value| value.trim().parse());
        Ok(Self::Sweep { key: key.to_owned(), values: values.collect::<Result<_, _>>()? })
    }
}

fn allowed(runs: usize) -> Result<u32, ArrayError> {
    let count = u32::try_from(runs).ok().filter(|runs| (2..=MOST_RUNS).contains(runs));
    count.ok_or(ArrayError::Runs { runs })
}

/// Splits at commas outside of brackets and quotes.
fn split_values(text: &str) -> Vec<&str> {
    let (mut values, mut begin, mut depth, mut quote) = (Vec::new(), 0, 0_i64, None);
    for (at, c) in text.char_indices() {
        match c {
            _ if quote == Some(c) => quote = None,
            _ if quote.is_some() => {}
            '"' | '\'' => quote = Some(c),
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            ',' if depth <= 0 => {
                values.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    values.push(&text[begin..]);
    values
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn values(text: &str) -> Vec<String> {
        match text.parse().unwrap() {
            Array::Sweep { values, .. } => values.iter().map(|value| value.text().to_owned()).collect(),
            Array::Runs(runs) => panic!("{runs}"),
        }
    }

    #[test]
    fn numbers_and_sweeps_are_read() {
        assert_eq!("8".parse(), Ok(Array::Runs(8)));
        assert_eq!(values("optim.lr=0.1,0.01, 0.001"), ["0.1", "0.01", "0.001"]);
        assert_eq!(values("optim.betas=[0.9,0.99],[0.8,0.9]"), ["[0.9,0.99]", "[0.8,0.9]"]);
        assert_eq!(values("data.root='a,b',c=d"), ["'a,b'", "c=d"]);
    }

    #[test]
    fn the_most_runs_at_once_follow_the_runs() {
        let read = |text: &str| text.parse().map(|ArrayFlag { array, runs_at_once }| (array, runs_at_once));
        assert_eq!(read("8%2"), Ok((Some(Array::Runs(8)), Some(2))));
        assert_eq!(read("%2"), Ok((None, Some(2))));
        let sweep = "optim.lr=0.1,0.01".parse().ok();
        assert_eq!(read("optim.lr=0.1,0.01%1"), Ok((sweep, Some(1))));
        let quoted = "data.root='a','5%3'".parse().ok();
        assert_eq!(read("data.root='a','5%3'"), Ok((quoted, None)));
        assert_eq!(read("8%0"), Err(ArrayError::NoneAtOnce));
        assert!(read("8%x").is_err());
    }

    #[test]
    fn wrong_arrays_are_errors() {
        assert_eq!("1".parse::<Array>(), Err(ArrayError::Runs { runs: 1 }));
        assert_eq!("1001".parse::<Array>(), Err(ArrayError::Runs { runs: 1001 }));
        assert_eq!("lr=0.1".parse::<Array>(), Err(ArrayError::Runs { runs: 1 }));
        assert_eq!("lr=0.1,,2".parse::<Array>(), Err(ArrayError::EmptyValue));
        assert_eq!("lr=".parse::<Array>(), Err(ArrayError::EmptyValue));
        assert!(matches!("0-3".parse::<Array>(), Err(ArrayError::Form { .. })));
        assert!(matches!("a$b=1,2".parse::<Array>(), Err(ArrayError::Key { .. })));
        assert!(matches!("a=1,\u{7}".parse::<Array>(), Err(ArrayError::Text(_))));
    }

    proptest! {
        #[test]
        fn any_text_reads_or_is_an_error(text: String) {
            let _ = text.parse::<ArrayFlag>();
            if let Ok(array) = text.parse::<Array>() {
                prop_assert!((2..=MOST_RUNS).contains(&array.runs()));
            }
        }
    }
}
