//! From text and overrides to a recipe: parse, override, check against the schema, read, resolve, validate.

use std::io::Read;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::error::{Details, RecipeError};
use super::hints::{describe, nearest};
use super::origin::{Origin, Override, Problem, dotted, line_of};
use super::{Recipe, defaults, paths, validate, values};

/// No recipe is larger; a file that is was named by mistake.
const MAX_BYTES: u64 = 1 << 20;
/// Deeper overrides are refused before they are built: tables are taken apart recursively.
const MAX_DEPTH: usize = 16;

impl Recipe {
    /// Loads a recipe: `name_or_path` is a file, else the name of an embedded recipe. `overrides` are `a.b=value` with
    /// a TOML value, or bare text where that is no TOML; they apply in order, later ones win, before anything is
    /// checked.
    ///
    /// # Errors
    /// [`RecipeError`] naming file, line and key.
    pub fn load(name_or_path: &str, overrides: &[String]) -> Result<Self, RecipeError> {
        let path = Path::new(name_or_path);
        let embedded = Self::embedded().iter().find(|(name, _)| *name == name_or_path);
        // A folder of the same name must not hide an embedded recipe.
        let is_folder = path.is_dir();
        if !is_folder && path.exists() {
            let text = read(path).map_err(|message| RecipeError::whole(name_or_path, message))?;
            return Self::parse(name_or_path, &text, overrides);
        }
        if let Some((name, text)) = embedded {
            return Self::parse(&format!("embedded recipe {name}"), text, overrides);
        }
        let names: Vec<_> = Self::embedded().iter().map(|(name, _)| *name).collect();
        let what = if is_folder {
            "is a folder, not a recipe file"
        } else {
            "there is no such file"
        };
        let hint = nearest(name_or_path, &names)
            .map(|name| format!(" Did you mean the embedded recipe `{name}`?"))
            .unwrap_or_default();
        Err(RecipeError::whole(
            name_or_path,
            format!(
                "{what}.{hint} Give the path of a recipe or the name of an embedded one: {}",
                names.join(", ")
            ),
        ))
    }

    /// Reads a recipe from `text`; `source_name` is what errors call it. See [`Recipe::load`].
    ///
    /// # Errors
    /// [`RecipeError`] naming source, line and key.
    pub fn parse(source_name: &str, text: &str, overrides: &[String]) -> Result<Self, RecipeError> {
        // Some editors begin a file with a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut table: Table = text
            .parse()
            .map_err(|error| not_toml(source_name, text, &error))?;
        let mut origin = Origin {
            source_name,
            text,
            overrides: Vec::new(),
        };
        for set in overrides {
            let applied = apply(set, &mut table).map_err(|message| Details {
                source_name: Some(source_name.into()),
                set: Some(set.clone()),
                message,
                ..Details::default()
            })?;
            origin.overrides.push(applied);
        }
        origin.first(values::check(&table))?;
        let mut recipe: Self =
            serde_path_to_error::deserialize(Value::Table(table.clone())).map_err(|error| {
                let path = error.path().to_string();
                origin.error(&Problem::at(&path, error.into_inner().message()))
            })?;
        defaults::fill(&mut recipe, &|key| given(&table, key));
        origin.first(paths::make_absolute(&mut recipe))?;
        origin.first(validate::check(&recipe, &table))?;
        Ok(recipe)
    }
}

/// Whether the recipe states the key.
pub(super) fn given(table: &Table, dotted: &str) -> bool {
    match dotted.split_once('.') {
        None => table.contains_key(dotted),
        Some((section, rest)) => match table.get(section) {
            Some(Value::Table(inner)) => given(inner, rest),
            _ => false,
        },
    }
}

/// The error of a text that is no TOML, or of a number in it that no integer holds.
fn not_toml(source_name: &str, text: &str, error: &toml::de::Error) -> RecipeError {
    let offset = error.span().map(|span| span.start);
    // The grammar allows whole numbers of any length; only then does the text parse here.
    let document = DeTable::parse(text).ok();
    let key = offset.and_then(|offset| key_at(document.as_ref()?.get_ref(), offset));
    let message = match key {
        Some(_) => format!("the number is too large; whole numbers go up to {}", i64::MAX),
        None => format!("this is not TOML: {}", error.message()),
    };
    let line = offset.map(|offset| line_of(text, offset));
    Details {
        source_name: Some(source_name.into()),
        line,
        key,
        set: None,
        message,
    }
    .into()
}

/// The dotted key of the value at a byte offset.
fn key_at(table: &DeTable<'_>, offset: usize) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let inner = key_in(value, offset)?;
        Some(format!("{}{inner}", key.get_ref()))
    })
}

/// What follows the key of a value to name the innermost value at a byte offset: nothing, `.key` or `[index].key`.
fn key_in(value: &Spanned<DeValue<'_>>, offset: usize) -> Option<String> {
    let within = || value.span().contains(&offset).then(String::new);
    match value.get_ref() {
        DeValue::Table(table) => key_at(table, offset).map(|inner| format!(".{inner}")),
        DeValue::Array(list) => {
            // Only tables in a list have keys to name.
            let mut tables = list.iter().enumerate();
            let inner = tables.find_map(|(index, value)| match value.get_ref() {
                DeValue::Table(table) => key_at(table, offset).map(|inner| format!("[{index}].{inner}")),
                _ => None,
            });
            inner.or_else(within)
        }
        _ => within(),
    }
}

fn read(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!(
            "is larger than {} MiB, which no recipe is",
            MAX_BYTES >> 20
        ));
    }
    String::from_utf8(bytes).map_err(|_| "is not text in UTF-8".into())
}

/// Puts one `a.b=value` into the table.
fn apply(set: &str, table: &mut Table) -> Result<Override, String> {
    let example = "write key=value, for example train.epochs=3";
    let Some((key, value)) = set.split_once('=') else {
        return Err(format!("there is no `=` in it; {example}"));
    };
    let path: Vec<String> = key.split('.').map(|name| name.trim().to_string()).collect();
    if path.iter().any(String::is_empty) {
        return Err(format!("{:?} is not a key; {example}", key.trim()));
    }
    if path.len() > MAX_DEPTH {
        return Err(format!(
            "the key has {} parts and none has more than 5; {example}",
            path.len()
        ));
    }
    let value = value.trim();
    let value = value
        .parse::<Value>()
        .unwrap_or_else(|_| Value::String(value.into()));
    let (last, parents) = path.split_last().ok_or_else(|| example.to_string())?;
    let mut taken: Vec<String> = Vec::new();
    let mut target = Place::Table(table);
    for name in parents {
        target = target.enter(name, &mut taken)?;
    }
    target.set(last, value, &mut taken)?;
    Ok(Override {
        path: taken,
        text: set.into(),
    })
}

/// What an override goes through: a section, or a list of them, whose members are called by their number from 0.
enum Place<'a> {
    Table(&'a mut Table),
    List(&'a mut Vec<Value>),
}

impl<'a> Place<'a> {
    /// The section or list of this name; `taken` is the way to it.
    fn enter(self, name: &str, taken: &mut Vec<String>) -> Result<Self, String> {
        let inner = match self {
            Self::Table(table) => {
                taken.push(name.into());
                table.entry(name).or_insert_with(|| Value::Table(Table::new()))
            }
            Self::List(list) => member(list, name, taken)?,
        };
        match inner {
            Value::Table(table) => Ok(Self::Table(table)),
            Value::Array(list) => Ok(Self::List(list)),
            other => Err(format!(
                "`{}` is {} and holds no further keys",
                dotted(taken),
                describe(other)
            )),
        }
    }

    fn set(self, name: &str, value: Value, taken: &mut Vec<String>) -> Result<(), String> {
        match self {
            Self::Table(table) => {
                taken.push(name.into());
                table.insert(name.into(), value);
            }
            Self::List(list) => *member(list, name, taken)? = value,
        }
        Ok(())
    }
}

fn member<'a>(list: &'a mut [Value], name: &str, taken: &mut Vec<String>) -> Result<&'a mut Value, String> {
    let (count, key) = (list.len(), dotted(taken));
    let found = name.parse::<usize>().ok().and_then(|index| list.get_mut(index));
    let last = count.saturating_sub(1);
    let found = found.ok_or_else(|| {
        format!(
            "`{key}` is a list of {count}, whose members are called {key}.0 to {key}.{last}, not {name:?}"
        )
    })?;
    taken.push(format!("[{name}]"));
    Ok(found)
}
