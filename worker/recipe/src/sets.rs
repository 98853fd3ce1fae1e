//! `data.val` and `data.tests`: the sets besides the training and the test samples.

use std::fmt;
use std::str::FromStr;

use dtrain_common::recipe::hints::describe;
use dtrain_common::recipe::kinds::{Kind, check, each_entry};
use serde::{Deserialize, Serialize};
use toml::Value;

use super::kinds::{FOLDER_NAME, is_folder_name};

/// Before the name of a column in `data.val`.
const COLUMN: &str = "column:";
/// Before the part of the test samples in `data.val`.
const OF_TEST: &str = "test:";

/// Before the part of the training samples in `data.test`.
const OF_TRAIN: &str = "train:";

/// Returns the part of the training samples that a value of `data.test` names, if it names one; above 0 and below 1.
pub(super) fn part_of_train(text: &str) -> Option<Result<f64, String>> {
    let part = text.strip_prefix(OF_TRAIN)?;
    Some(match part.trim().parse() {
        Ok(part) if part > 0.0 && part < 1.0 => Ok(part),
        _ => Err(format!(
            "{text:?} is no part of the training samples; give a number above 0 and below 1, such as train:0.2"
        )),
    })
}

pub(super) const TEST: Kind = Kind::Other(
    "the name of a folder or set, or a part of the training samples such as \"train:0.2\"",
    &["string"],
    |value| match value.as_str().map(part_of_train) {
        Some(Some(part)) => part.map(|_| true),
        Some(None) => check(&FOLDER_NAME, value).map(|()| true),
        None => Ok(false),
    },
);

/// Where the validation samples come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Val {
    /// This part of the training samples, by a hash of each sample's path; above 0 and below 1.
    Part(f64),
    /// A separate set.
    Set(ValSet),
}

/// A set of validation samples.
#[derive(Debug, Clone, PartialEq)]
pub enum ValSet {
    /// The folder below the source's root, or the name in a table's column `split`.
    Named(String),
    /// `column:NAME`: the column NAME of a table, in place of `split`, has the name `val` for them.
    Column(String),
    /// `test:PART`: this part of the test samples, the first in the order of their names; above 0 and below 1.
    OfTest(f64),
}

dtrain_common::as_text!(ValSet);

impl FromStr for ValSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(part) = text.strip_prefix(OF_TEST) {
            return match part.trim().parse() {
                Ok(part) if part > 0.0 && part < 1.0 => Ok(Self::OfTest(part)),
                _ => Err(format!(
                    "{text:?} is no part of the test samples; give a number above 0 and below 1, such as test:0.2"
                )),
            };
        }
        match text.strip_prefix(COLUMN).map(str::trim) {
            Some("") => Err(format!("{text:?} names no column; write column:split")),
            Some(column) => Ok(Self::Column(column.to_owned())),
            None if text.contains('.') && text.parse::<f64>().is_ok() => {
                Err(format!("{text} is no part of the training samples; give a number above 0 and below 1"))
            }
            None if is_folder_name(text) => Ok(Self::Named(text.to_owned())),
            None => Err(format!("{text:?} is no name of a folder below data.root")),
        }
    }
}

impl fmt::Display for ValSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Column(column) => write!(f, "{COLUMN}{column}"),
            Self::OfTest(part) => write!(f, "{OF_TEST}{part}"),
        }
    }
}

impl Val {
    /// Returns the name of its set, if it is one.
    pub fn set(&self) -> Option<&str> {
        match self {
            Self::Part(_) | Self::Set(ValSet::OfTest(_)) => None,
            Self::Set(ValSet::Named(name)) => Some(name),
            Self::Set(ValSet::Column(_)) => Some("val"),
        }
    }

    /// Returns the part of the test samples, if it is one.
    pub fn of_test(&self) -> Option<f64> {
        match self {
            Self::Set(ValSet::OfTest(part)) => Some(*part),
            _ => None,
        }
    }

    /// Returns the column that names the set of each line of a table, if it is not `split`.
    pub fn column(&self) -> Option<&str> {
        match self {
            Self::Set(ValSet::Column(column)) => Some(column),
            _ => None,
        }
    }
}

pub(super) const VAL: Kind = Kind::Other(
    "the name of a folder or set, a part of the training samples such as 0.2, one of the test samples such as test:0.2, or \
     column:NAME",
    &["string", "number"],
    |value| match value {
        Value::String(text) => text.parse::<ValSet>().map(|_| true),
        Value::Float(part) if *part > 0.0 && *part < 1.0 => Ok(true),
        Value::Float(_) | Value::Integer(_) => Err(format!(
            "{} is no part of the training samples; give a number above 0 and below 1",
            describe(value)
        )),
        _ => Ok(false),
    },
);

/// A table of folders, not empty, with names that lines of metrics.jsonl can have.
pub(super) const TESTS: Kind =
    Kind::Other("a table of folders, such as { night = \"test_night\" }", &["object"], |value| {
        for name in value.as_table().into_iter().flat_map(|table| table.keys()) {
            check_test_name(name)?;
        }
        each_entry(value, |value| check(&FOLDER_NAME, value))
    });

/// Checks the name of another test set.
///
/// # Errors
/// The name of another set, and one that lines of metrics.jsonl cannot have; with the remedy.
pub fn check_test_name(name: &str) -> Result<(), String> {
    if ["test", "train", "val"].contains(&name) {
        return Err(format!("`{name}` is the name of another set; choose another name"));
    }
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
        return Err(format!(
            "the name `{name}` needs one or more letters, digits and _-.; choose another name"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_part_a_set_and_a_column_read_and_write() {
        for (text, val, set, column) in [
            ("v = 0.25", Val::Part(0.25), None, None),
            ("v = \"valid\"", Val::Set(ValSet::Named("valid".to_owned())), Some("valid"), None),
            ("v = \"test:0.2\"", Val::Set(ValSet::OfTest(0.2)), None, None),
            ("v = \"column:fold\"", Val::Set(ValSet::Column("fold".to_owned())), Some("val"), Some("fold")),
        ] {
            let read: BTreeMap<String, Val> = toml::from_str(text).unwrap();
            assert_eq!(read["v"], val, "{text}");
            assert_eq!(toml::to_string(&read).unwrap().trim(), text);
            assert_eq!((val.set(), val.column()), (set, column));
            let read = |text: &str| text.parse::<toml::Table>().unwrap()["v"].clone();
            assert_eq!(check(&VAL, &read(text)), Ok(()));
        }
        for text in [
            "v = 1",
            "v = 0.0",
            "v = 1.5",
            "v = \"../x\"",
            "v = \"column:\"",
            "v = \"test:\"",
            "v = \"test:1\"",
            "v = \"test:nan\"",
            "v = true",
            "v = \"\"",
        ] {
            let value = text.parse::<toml::Table>().unwrap()["v"].clone();
            assert!(check(&VAL, &value).is_err(), "{text}");
        }
    }

    #[test]
    fn test_sets_have_names_of_their_own() {
        let read = |text: &str| text.parse::<toml::Table>().unwrap()["t"].clone();
        assert_eq!(check(&TESTS, &read("t = { night = \"night\", \"a-b.2\" = \"x/y\" }")), Ok(()));
        for text in [
            "t = { test = \"a\" }",
            "t = { \"a b\" = \"a\" }",
            "t = { \"\" = \"a\" }",
            "t = { a = \"/a\" }",
            "t = {}",
            "t = 1",
        ] {
            assert!(check(&TESTS, &read(text)).is_err(), "{text}");
        }
    }
}
