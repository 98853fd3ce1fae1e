//! From text and overrides to a recipe: parse, override, check against the schema, read, resolve, validate.

use std::io::Read;
use std::path::Path;

use toml::{Table, Value};

use super::error::{Details, RecipeError};
use super::hints::{describe, nearest};
use super::origin::{Origin, Override, Problem, dotted, is_stated};
use super::{Recipe, defaults, paths, validate, values};
use crate::content::{Content, shell_word};

/// Upper limit for a recipe; a larger file was named by mistake.
const MAX_BYTES: u64 = 1 << 20;
/// Most parts of an override's key: tables are processed recursively, so their depth is limited.
const MAX_DEPTH: usize = 16;

impl Recipe {
    /// Loads the recipe of a file, else the embedded recipe of that name. `overrides` are `a.b=value` with a
    /// TOML value or bare text, whichever the key takes; they apply in order, before any check. Errors name file, line and key.
    pub fn load(name_or_path: &str, overrides: &[String]) -> Result<Self, RecipeError> {
        let (source_name, text) = Self::find(name_or_path)?;
        Self::parse(&source_name, &text, overrides)
    }

    /// Returns whether the recipe or an override states a key, such as `checkpoint.every`.
    ///
    /// # Errors
    ///
    /// As [`Recipe::load`], of a recipe that cannot be found or is not TOML.
    pub fn states(name_or_path: &str, overrides: &[String], key: &str) -> Result<bool, RecipeError> {
        let (source_name, text) = Self::find(name_or_path)?;
        Ok(is_stated(&stated(&source_name, &text, overrides)?.0, key))
    }

    /// Returns the name of a recipe for messages, and its text.
    fn find(name_or_path: &str) -> Result<(String, String), RecipeError> {
        let path = Path::new(name_or_path);
        // A folder of the same name must not hide an embedded recipe.
        let is_folder = path.is_dir();
        if !is_folder && path.exists() {
            let text = read(path).map_err(|message| RecipeError::whole(name_or_path, message))?;
            return Ok((name_or_path.to_owned(), text));
        }
        let embedded = Self::embedded();
        if let Some((name, text)) = embedded.iter().find(|(name, _)| *name == name_or_path) {
            return Ok((format!("built-in recipe {name}"), (*text).to_owned()));
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

    /// Reads a recipe from `text`; errors name it `source_name`. See [`Recipe::load`].
    pub fn parse(source_name: &str, text: &str, overrides: &[String]) -> Result<Self, RecipeError> {
        let (stated, origin) = stated(source_name, text, overrides)?;
        origin.first(values::check(&stated))?;
        let mut recipe: Self = serde_path_to_error::deserialize(stated.clone()).map_err(|error| {
            origin.error(&Problem::at(&error.path().to_string(), error.into_inner().message()))
        })?;
        defaults::fill(&mut recipe, &|key| is_stated(&stated, key));
        origin.first(paths::make_absolute(&mut recipe))?;
        origin.first(validate::check(&recipe, &stated))?;
        Ok(recipe)
    }
}

/// Returns what the text and the overrides state.
fn stated<'a>(
    source_name: &'a str,
    text: &'a str,
    overrides: &[String],
) -> Result<(Value, Origin<'a>), RecipeError> {
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut origin = Origin { source_name, text, overrides: Vec::new() };
    let table: Table = text.parse().map_err(|error| origin.not_toml(&error))?;
    let mut stated = Value::Table(table);
    for set in overrides {
        let applied = apply(set, &mut stated).map_err(|message| Details {
            source_name: Some(source_name.into()),
            set: Some(set.clone()),
            message,
            ..Details::default()
        })?;
        origin.overrides.push(applied);
    }
    Ok((stated, origin))
}

fn read(path: &Path) -> Result<String, String> {
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
fn apply(set: &str, recipe: &mut Value) -> Result<Override, String> {
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
    values::set(recipe, &path, value.trim());
    let text = set.into();
    Ok(Override { path, text })
}
