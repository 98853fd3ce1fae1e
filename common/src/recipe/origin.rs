//! Where each value of a recipe came from, and the problems that are reported there.

use toml::de::{DeTable, DeValue};

use super::error::{Details, RecipeError};

/// Something wrong with one key.
#[derive(Debug)]
pub(super) struct Problem {
    /// The names of the sections and of the key; `[0]` for the first table of a list.
    pub(super) path: Vec<String>,
    pub(super) message: String,
}

impl Problem {
    /// A problem with the key at a dotted path of plain names, such as `a.b` or `a.list[0].b`.
    pub(super) fn at(dotted: &str, message: impl Into<String>) -> Self {
        let mut path = Vec::new();
        for name in dotted.split('.') {
            match name.find('[') {
                Some(bracket) if bracket > 0 => {
                    path.push(name[..bracket].to_string());
                    path.push(name[bracket..].to_string());
                }
                _ => path.push(name.to_string()),
            }
        }
        Self {
            path,
            message: message.into(),
        }
    }
}

/// One `--set`.
pub(super) struct Override {
    /// The key that it sets.
    pub(super) path: Vec<String>,
    /// `key=value` as it was given.
    pub(super) text: String,
}

/// Where each value came from.
pub(super) struct Origin<'a> {
    pub(super) source_name: &'a str,
    pub(super) text: &'a str,
    pub(super) overrides: Vec<Override>,
}

impl Origin<'_> {
    /// The first problem in the order of the file; then those of what is missing and those of overrides.
    pub(super) fn first(&self, problems: Vec<Problem>) -> Result<(), RecipeError> {
        let errors = problems.iter().map(|problem| self.error(problem));
        // What has no line is something missing, often because its name is misspelt at a line.
        errors
            .min_by_key(|error| (error.set().is_some(), error.line().is_none(), error.line()))
            .map_or(Ok(()), Err)
    }

    pub(super) fn error(&self, problem: &Problem) -> RecipeError {
        let path = &problem.path;
        let (line, whole) = self.locate(path);
        let newest = |test: &dyn Fn(&Override) -> bool| self.overrides.iter().rev().find(|set| test(set));
        // An override decides a value when it sets the value or a table around it, or makes a table that the file lacks.
        let set = newest(&|set| path.starts_with(&set.path)).or_else(|| {
            if whole {
                None
            } else {
                newest(&|set| set.path.starts_with(path))
            }
        });
        Details {
            source_name: Some(self.source_name.into()),
            line: if set.is_some() { None } else { line },
            key: Some(dotted(path)),
            set: set.map(|set| set.text.clone()),
            message: problem.message.clone(),
        }
        .into()
    }

    /// The line of the longest beginning of `path` that the file holds, and whether that is the whole path.
    fn locate(&self, path: &[String]) -> (Option<usize>, bool) {
        let Ok(document) = DeTable::parse(self.text) else {
            return (None, false);
        };
        let mut line = None;
        let mut names = path.iter();
        let first = names.next().map(String::as_str).unwrap_or_default();
        let Some((key, mut value)) = document.get_ref().get_key_value(first) else {
            return (line, false);
        };
        line = Some(line_of(self.text, key.span().start));
        for name in names {
            let inner = match value.get_ref() {
                DeValue::Table(table) => table
                    .get_key_value(name.as_str())
                    .map(|(key, value)| (key.span().start, value)),
                DeValue::Array(list) => index(name)
                    .and_then(|index| list.get(index))
                    .map(|value| (value.span().start, value)),
                _ => None,
            };
            let Some((start, inner)) = inner else {
                return (line, false);
            };
            line = Some(line_of(self.text, start));
            value = inner;
        }
        (line, true)
    }
}

/// The line, from 1, of a byte offset.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}

/// The number in `[0]`.
fn index(name: &str) -> Option<usize> {
    name.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// A path as it is printed.
pub(super) fn dotted(path: &[String]) -> String {
    let mut text = String::new();
    for name in path {
        if !text.is_empty() && index(name).is_none() {
            text.push('.');
        }
        text.push_str(name);
    }
    text
}
