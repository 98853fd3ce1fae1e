//! The places of a recipe's keys in its text.

use std::fmt;
use std::ops::Range;

use toml::Value;
use toml::de::{DeTable, DeValue};

use super::error::{Details, RecipeError};

/// A key of a recipe and what is wrong with it.
#[derive(Debug)]
pub struct Problem {
    /// The names of the sections and of the key; `[0]` for the first table of a list.
    pub path: Vec<String>,
    pub message: String,
}

impl Problem {
    /// Makes a problem with the key at a dotted path of plain names, such as `a.b` or `a.list[0].b`.
    pub fn at(dotted: &str, message: impl Into<String>) -> Self {
        let names = dotted.split('.').flat_map(|name| {
            let (key, index) = name.split_at(name.find('[').unwrap_or(name.len()));
            [key, index].into_iter().filter(|part| !part.is_empty())
        });
        Self { path: names.map(String::from).collect(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match dotted(&self.path).as_str() {
            "" => f.write_str(&self.message),
            key => write!(f, "{key}: {}", self.message),
        }
    }
}

/// Makes the error of a text that is not TOML, or that has too large an integer.
pub(super) fn not_toml(source_name: &str, text: &str, error: &toml::de::Error) -> RecipeError {
    let offset = error.span().map(|span| span.start);
    // TOML's grammar allows integers of any length. For other errors there are no spans.
    let spans = key_spans(text);
    let around = |offset: usize| spans.iter().rfind(|span| span.value.contains(&offset));
    let key = offset.and_then(around).map(|span| dotted(&span.path));
    let message = match key {
        Some(_) => format!("the number is too large; whole numbers go up to {}", i64::MAX),
        None => format!("this is not TOML: {}", error.message()),
    };
    Details {
        source_name: Some(source_name.into()),
        line: offset.map(|offset| line_of(text, offset)),
        key,
        set: None,
        message,
    }
    .into()
}

pub(super) struct KeySpan {
    pub(super) path: Vec<String>,
    /// Offset of the key, or of the table.
    pub(super) key: usize,
    value: Range<usize>,
}

/// Returns every key of a text, each table before its keys; nothing if the text is not TOML.
pub(super) fn key_spans(text: &str) -> Vec<KeySpan> {
    fn visit(table: &DeTable<'_>, path: &[String], found: &mut Vec<KeySpan>) {
        for (key, value) in table {
            let path = [path, &[key.get_ref().to_string()]].concat();
            let (key, span) = (key.span().start, value.span());
            found.push(KeySpan { path: path.clone(), key, value: span });
            match value.get_ref() {
                DeValue::Table(inner) => visit(inner, &path, found),
                DeValue::Array(list) => {
                    for (index, member) in list.iter().enumerate() {
                        let path = [&path[..], &[format!("[{index}]")]].concat();
                        let DeValue::Table(inner) = member.get_ref() else { continue };
                        let value = member.span();
                        found.push(KeySpan { path: path.clone(), key: value.start, value });
                        visit(inner, &path, found);
                    }
                }
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    if let Ok(document) = DeTable::parse(text) {
        visit(document.get_ref(), &[], &mut found);
    }
    found
}

pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// Returns whether a recipe holds a key of plain names, such as `checkpoint.every`.
pub fn is_stated(recipe: &Value, dotted: &str) -> bool {
    let mut names = dotted.split('.');
    names.try_fold(recipe, |value, name| value.get(name)).is_some()
}

pub(super) fn dotted(path: &[String]) -> String {
    path.join(".").replace(".[", "[")
}
