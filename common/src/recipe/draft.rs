//! From text and overrides to values with places: the part of loading that is the same for every trainer.

use std::io::Read;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::error::{Details, RecipeError};
use super::hints::{describe, nearest};
use super::kinds::Key;
use super::origin::{Problem, dotted, is_stated, key_spans, line_of, not_toml};
use super::values;
use crate::content::{Content, shell_word};

/// Upper limit for a recipe; a larger file was named by mistake.
const MAX_BYTES: u64 = 1 << 20;
/// Most parts of an override's key: tables are processed recursively, so their depth is limited.
const MAX_DEPTH: usize = 16;

/// The text of a recipe, and its name for messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    pub name: String,
    pub text: String,
}

impl Source {
    /// Reads the file of this path, else returns the embedded recipe of this name. A pipe can be read once.
    ///
    /// # Errors
    /// There is neither, or the file is not a text of at most 1 MiB.
    pub fn find(name_or_path: &str) -> Result<Self, RecipeError> {
        let path = Path::new(name_or_path);
        // A folder of the same name must not hide an embedded recipe.
        let is_folder = path.is_dir();
        if !is_folder && path.exists() {
            let text = read_file(path).map_err(|message| RecipeError::whole(name_or_path, message))?;
            return Ok(Self { name: name_or_path.to_owned(), text });
        }
        let embedded = Self::embedded();
        if let Some((name, text)) = embedded.iter().find(|(name, _)| *name == name_or_path) {
            return Ok(Self { name: format!("built-in recipe {name}"), text: (*text).to_owned() });
        }
        let names: Vec<_> = embedded.iter().map(|(name, _)| *name).collect();
        let what = if is_folder { "is a folder, not a recipe file" } else { "there is no such file" };
        let hint = nearest(name_or_path, &names)
            .map(|name| format!(" Did you mean the built-in recipe `{name}`?"))
            .unwrap_or_default();
        let names = names.join(", ");
        let message =
            format!("{what}.{hint} Give the path of a recipe or the name of a built-in one: {names}");
        Err(RecipeError::whole(name_or_path, message))
    }
}

/// One `--set`.
struct Override {
    path: Vec<String>,
    text: String,
}

/// What a text and overrides state, and where.
pub struct Draft<'a> {
    stated: Value,
    source_name: &'a str,
    text: &'a str,
    overrides: Vec<Override>,
}

impl<'a> Draft<'a> {
    /// Parses a recipe and applies overrides `a.b=value`, with a TOML value or bare text, whichever the key takes, in order.
    ///
    /// # Errors
    /// A text that is not TOML, or an override that no recipe can have.
    pub fn new(source: &'a Source, overrides: &[String], keys: &[Key]) -> Result<Self, RecipeError> {
        // Some editors begin a file with a byte order mark.
        let text = source.text.strip_prefix('\u{feff}').unwrap_or(&source.text);
        let table: Table = text.parse().map_err(|error| not_toml(&source.name, text, &error))?;
        let stated = Value::Table(table);
        let mut draft = Self { stated, source_name: &source.name, text, overrides: Vec::new() };
        for set in overrides {
            let applied = apply(keys, set, &mut draft.stated).map_err(|message| Details {
                source_name: Some(source.name.clone()),
                set: Some(set.clone()),
                message,
                ..Details::default()
            })?;
            draft.overrides.push(applied);
        }
        Ok(draft)
    }

    /// Returns all unknown keys, all wrong values, and missing keys of the general sections.
    pub fn check(&self, keys: &[Key]) -> Vec<Problem> {
        values::check(keys, &self.stated)
    }

    /// Returns the recipe as written, without defaults.
    pub fn stated(&self) -> &Value {
        &self.stated
    }

    /// Returns whether the recipe or an override states a key.
    pub fn states(&self, key: &str) -> bool {
        is_stated(&self.stated, key)
    }

    /// Returns the first problem in the order of the file as an error; then missing keys, then overrides.
    pub fn first(&self, problems: Vec<Problem>) -> Result<(), RecipeError> {
        let errors = problems.iter().map(|problem| self.error(problem));
        // A problem without a line is a missing key, often because its name is misspelt in some line.
        errors
            .min_by_key(|error| (error.0.set.is_some(), error.0.line.is_none(), error.0.line))
            .map_or(Ok(()), Err)
    }

    /// Returns the error of a problem.
    pub fn error(&self, problem: &Problem) -> RecipeError {
        let path = &problem.path;
        // The longest prefix of the path that the file holds.
        let spans = key_spans(self.text);
        let held = spans.iter().filter(|span| path.starts_with(&span.path));
        let held = held.max_by_key(|span| span.path.len());
        let is_whole = held.is_some_and(|span| span.path.len() == path.len());
        // An override decides a value if it sets it or a table around it, or makes a table the file lacks.
        let decides =
            |set: &&Override| path.starts_with(&set.path) || !is_whole && set.path.starts_with(path);
        let set = self.overrides.iter().rfind(decides);
        Details {
            source_name: Some(self.source_name.into()),
            line: held.filter(|_| set.is_none()).map(|span| line_of(self.text, span.key)),
            key: Some(dotted(path)),
            set: set.map(|set| set.text.clone()),
            message: problem.message.clone(),
        }
        .into()
    }
}

/// Reads a value as a `T`. The problem names the key below `place`.
pub fn read<T: DeserializeOwned>(place: &str, value: Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        // serde writes "." as the path of the value itself.
        let inner = if path == "." { "" } else { &path };
        let point = if place.is_empty() || inner.is_empty() { "" } else { "." };
        Problem::at(&format!("{place}{point}{inner}"), error.into_inner().message())
    })
}

fn read_file(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    match Content::of(&bytes, &[]) {
        // A section of TOML begins as a list of JSON does.
        Some(Content::Json) if !bytes.trim_ascii_start().starts_with(b"{") => {}
        Some(content @ Content::Utf16) => {
            let new = path.with_extension("utf8.toml");
            let [from, to] = [path, &new].map(|path| shell_word(&path.to_string_lossy()));
            return Err(format!(
                "is {content}; convert it with `iconv -f UTF-16 -t UTF-8 {from} > {to}` and use the new file"
            ));
        }
        Some(content) => {
            let remedy = content.remedy(path).map(|remedy| format!("; {remedy}")).unwrap_or_default();
            return Err(format!("is {content}, not a recipe in TOML{remedy}"));
        }
        None => {}
    }
    if bytes.len() as u64 > MAX_BYTES {
        let most = MAX_BYTES >> 20;
        return Err(format!("is larger than {most} MiB, the limit for a recipe"));
    }
    String::from_utf8(bytes).map_err(|_| "is not text in UTF-8; convert it with iconv".into())
}

/// Applies one `a.b=value` to the recipe. Members of a list are named by their number from 0.
fn apply(keys: &[Key], set: &str, recipe: &mut Value) -> Result<Override, String> {
    let example = "write key=value, for example train.epochs=3";
    let Some((key, value)) = set.split_once('=') else {
        return Err(format!("it has no `=`; {example}"));
    };
    let names: Vec<&str> = key.split('.').map(str::trim).collect();
    if names.contains(&"") {
        return Err(format!("{:?} is not a key; {example}", key.trim()));
    }
    if names.len() > MAX_DEPTH {
        let parts = names.len();
        return Err(format!("the key has {parts} parts, and keys have at most 5; {example}"));
    }
    let (mut place, mut path) = (&mut *recipe, Vec::new());
    for name in names {
        let key = dotted(&path);
        place = match place {
            Value::Table(table) => {
                path.push(name.to_owned());
                table.entry(name).or_insert_with(|| Value::Table(Table::new()))
            }
            Value::Array(list) => {
                path.push(format!("[{name}]"));
                let (count, last) = (list.len(), list.len().saturating_sub(1));
                let member = name.parse().ok().and_then(|index: usize| list.get_mut(index));
                member.ok_or_else(|| {
                    format!(
                        "`{key}` is a list of {count}: name a member {key}.0 to {key}.{last}, not {name:?}"
                    )
                })?
            }
            other => {
                return Err(format!("`{key}` is {}, which has no keys", describe(other)));
            }
        };
    }
    values::set(keys, recipe, &path, value.trim());
    let text = set.into();
    Ok(Override { path, text })
}
