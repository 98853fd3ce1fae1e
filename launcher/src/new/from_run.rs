//! The recipe of a run, without settings that are defaults.

use super::text::Text;
use crate::trainer::{Paths, resolve, schema_text};
use anyhow::{Context, bail};
use dtrain_common::look::Setting;
use dtrain_common::recipe::{AnyRecipe, Source};
use dtrain_common::run_dir::RunDir;
use serde_json::Value as Json;
use std::path::Path;
use toml::{Table, Value};

/// The order of the first sections.
const FIRST: [&str; 4] = ["data", "model", "train", "optim"];
/// The most characters of a comment.
const MOST: usize = 90;

/// Returns the recipe of a run.
pub(super) fn text(run: &Path, out: &Path) -> anyhow::Result<String> {
    let file = RunDir::new(run.to_owned()).recipe();
    if !file.is_file() {
        bail!("{} is no run directory: it has no recipe.toml", run.display());
    }
    let name = file.to_str().with_context(|| format!("the path {} is not UTF-8", file.display()))?;
    let source = Source::find(name)?;
    let saved = source.text.parse::<Table>().with_context(|| format!("{name} is not TOML"))?;
    let least = without_defaults(&source, saved)?;
    let schema: Json = serde_json::from_str(&schema_text()?)?;
    let word = super::text::shell_word(&out.to_string_lossy());
    let mut text = Text::default();
    text.head(&[
        format!("The recipe of {}, without settings that are defaults.", run.display()),
        String::new(),
        format!("  dtrain launch {word}"),
    ]);
    let properties = &schema["properties"];
    let (mut sections, plain): (Vec<_>, Vec<_>) =
        least.iter().partition(|(_, value)| value.is_table() || is_list_of_tables(value));
    text.section("", &plain.iter().map(|(key, value)| described(key, value, properties)).collect::<Vec<_>>());
    let place = |name: &str| FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len());
    sections.sort_by_key(|(name, _)| place(name));
    for (name, value) in sections {
        match value {
            Value::Table(table) => {
                let properties = &properties[name]["properties"];
                text.section(
                    name,
                    &table.iter().map(|(key, value)| described(key, value, properties)).collect::<Vec<_>>(),
                );
            }
            Value::Array(list) => {
                let properties = &properties[name]["items"]["properties"];
                for one in list.iter().filter_map(Value::as_table) {
                    let settings: Vec<_> =
                        one.iter().map(|(key, value)| described(key, value, properties)).collect();
                    text.section(&format!("[{name}]"), &settings);
                }
            }
            _ => {}
        }
    }
    Ok(text.finish())
}

fn is_list_of_tables(value: &Value) -> bool {
    value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(Value::is_table))
}

fn described(key: &str, value: &Value, properties: &Json) -> Setting {
    let about = properties[key]["description"].as_str().unwrap_or_default();
    // The first sentence.
    let about = about.split_once(". ").map_or(about, |(first, _)| first).trim_end_matches('.');
    let about = if about.chars().count() <= MOST { about.to_owned() } else { String::new() };
    Setting { key: key.to_owned(), value: value.to_string(), about }
}

/// Removes every setting without which the trainer understands the same, and makes paths below the current folder relative.
fn without_defaults(source: &Source, saved: Table) -> anyhow::Result<Table> {
    let meaning = |table: &Table| -> Option<AnyRecipe> {
        let source = Source { name: source.name.clone(), text: toml::to_string(table).ok()? };
        Some(resolve(&source, &[], Paths::Ignore).ok()?.recipe)
    };
    let whole = resolve(source, &[], Paths::Ignore)?.recipe;
    let mut least = saved.clone();
    for path in places(&saved, &mut Vec::new()) {
        let mut without = least.clone();
        // Keys of an omitted section are gone already.
        if remove(&mut without, &path) && meaning(&without).as_ref() == Some(&whole) {
            least = without;
        }
    }
    let here = std::env::current_dir().context("cannot find the current folder")?;
    let mut relative = least.clone();
    let prefix = format!("{}/", here.to_string_lossy());
    relative.iter_mut().for_each(|(_, value)| shorten(value, &prefix));
    // A text that looks like a path may be another setting.
    Ok(if meaning(&relative).as_ref() == Some(&whole) { relative } else { least })
}

/// Returns the places of all settings, a section before what is in it.
fn places(table: &Table, above: &mut Vec<String>) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (key, value) in table {
        above.push(key.clone());
        found.push(above.clone());
        if let Value::Table(inner) = value {
            found.extend(places(inner, above));
        }
        above.pop();
    }
    found
}

/// Removes a setting. Returns whether it was there.
fn remove(table: &mut Table, path: &[String]) -> bool {
    match path {
        [] => false,
        [key] => table.remove(key).is_some(),
        [section, rest @ ..] => {
            table.get_mut(section).and_then(Value::as_table_mut).is_some_and(|inner| remove(inner, rest))
        }
    }
}

fn shorten(value: &mut Value, prefix: &str) {
    match value {
        Value::String(text) => {
            if let Some(rest) = text.strip_prefix(prefix) {
                *text = rest.to_owned();
            } else if prefix.strip_suffix('/') == Some(text.as_str()) {
                ".".clone_into(text);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| shorten(value, prefix)),
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| shorten(value, prefix)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn settings_are_removed_by_their_places() {
        let mut table: Table = "a = 1\n[b]\nc = { d = 2, e = 3 }\n".parse().unwrap();
        let all: Vec<String> = places(&table, &mut Vec::new()).iter().map(|place| place.join(".")).collect();
        assert_eq!(all, ["a", "b", "b.c", "b.c.d", "b.c.e"]);
        assert!(remove(&mut table, &["b".to_owned(), "c".to_owned(), "d".to_owned()]));
        assert!(!remove(&mut table, &["x".to_owned(), "c".to_owned()]));
        assert_eq!(table.to_string().replace('\n', " ").trim(), "a = 1  [b.c] e = 3");
    }

    #[test]
    fn paths_below_a_folder_become_relative() {
        let mut value = Value::Array(vec!["/a/b/c".into(), "/a/b".into(), "/a/bc".into()]);
        shorten(&mut value, "/a/b/");
        assert_eq!(value, Value::Array(vec!["c".into(), ".".into(), "/a/bc".into()]));
    }
}
