//! How the recipes of runs differ.

use std::collections::{BTreeMap, BTreeSet};

use dtrain_common::recipe::{AnyRecipe, Source};
use dtrain_common::run_dir::RunDir;
use serde_json::{Value, json};
use toml::Table;

use crate::changed_recipe::table_of;
use crate::diff::flat;

/// Reads the recipe of a run: its text, and its settings; `None` for a program.
pub(super) fn read(run_dir: &RunDir, problems: &mut Vec<String>) -> Option<(String, Option<AnyRecipe>)> {
    let path = run_dir.recipe();
    if !path.exists() {
        return None;
    }
    let source =
        Source::find(&path.to_string_lossy()).map_err(|error| problems.push(error.to_string())).ok()?;
    let table = source.text.parse::<Table>().map_err(|error| error.to_string());
    let recipe = table.and_then(|table| AnyRecipe::from_table(table).map_err(|problem| problem.to_string()));
    let recipe =
        recipe.map_err(|error| problems.push(format!("recipe.toml cannot be compared: {error}"))).ok();
    Some((source.text, recipe))
}

/// Returns the settings that differ, as rows of `key` and `values` by run, null for a run without a recipe. Those of the experiment come
/// first.
pub(super) fn differences(recipes: &[Option<&AnyRecipe>]) -> Vec<Value> {
    let Some(first) = recipes.iter().copied().flatten().next() else { return Vec::new() };
    let own = own_settings(recipes);
    // By the rules of a resume: paths of programs and lengths of last stages do not count.
    let mut rows: Vec<(String, Vec<Option<String>>)> = Vec::new();
    for (place, recipe) in recipes.iter().enumerate() {
        for (key, here, there) in recipe.map(|recipe| first.differences(recipe, &own)).unwrap_or_default() {
            let known = rows.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
                rows.push((key, recipes.iter().map(|recipe| recipe.map(|_| here.clone())).collect()));
                rows.len() - 1
            });
            rows[known].1[place] = Some(there);
        }
    }
    // Keys of the experiment that do not count in a resume still differ.
    let told: Vec<String> = rows.iter().map(|(key, _)| key.clone()).collect();
    let is_told = |key: &str| {
        told.iter().any(|own| {
            key == own || key.strip_prefix(own.as_str()).is_some_and(|rest| rest.starts_with(['.', '[']))
        })
    };
    let settings: Vec<_> =
        recipes.iter().map(|recipe| recipe.map(|recipe| flat(&table_of(recipe)))).collect();
    let keys: BTreeSet<&String> = settings.iter().flatten().flat_map(BTreeMap::keys).collect();
    for key in keys.into_iter().filter(|key| !is_told(key)) {
        let unset = || "not set".to_owned();
        let value = |of: &BTreeMap<String, String>| of.get(key).cloned().unwrap_or_else(unset);
        let values: Vec<_> = settings.iter().map(|of| of.as_ref().map(value)).collect();
        let stated: BTreeSet<_> = values.iter().flatten().collect();
        if stated.len() > 1 {
            rows.push((key.clone(), values));
        }
    }
    rows.into_iter().map(|(key, values)| json!({"key": key, "values": values})).collect()
}

/// Returns the keys of `[data]` and `[model]`, which only the trainer knows, with the value of a recipe that lacks them.
fn own_settings(recipes: &[Option<&AnyRecipe>]) -> Vec<(String, String)> {
    let keys = |section: &'static str| {
        let tables = recipes.iter().flatten().map(move |recipe| recipe.section(section));
        tables.flatten().map(move |(key, _)| format!("{section}.{key}"))
    };
    let keys: BTreeSet<String> = keys("data").chain(keys("model")).collect();
    keys.into_iter().map(|key| (key, "not set".to_owned())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn recipe(lr: &str, more: &str) -> AnyRecipe {
        let text = format!(
            "task = \"classify\"\n[data]\nroot = \"a\"\n[train]\neffective_batch = 8\nepochs = 1\n[optim]\nlr = {lr}\n{more}"
        );
        AnyRecipe::from_table(text.parse().unwrap()).unwrap()
    }

    #[test]
    fn settings_that_differ_have_the_value_of_every_run() {
        let runs = [
            recipe("0.1", ""),
            recipe("0.2", "[log]\nevery_steps = 5\n"),
            recipe("0.1", "[model]\nname = \"vit\"\n"),
        ];
        let rows = differences(&[Some(&runs[0]), Some(&runs[1]), None, Some(&runs[2])]);
        let expected = json!([
            {"key": "optim.lr", "values": ["0.1", "0.2", null, "0.1"]},
            {"key": "model.name", "values": ["not set", "not set", null, "\"vit\""]},
            {"key": "log.every_steps", "values": ["not set", "5", null, "not set"]},
        ]);
        assert_eq!(Value::from(rows), expected);
        assert!(differences(&[Some(&runs[0]), Some(&runs[0])]).is_empty());
        // A resume may have other ends of the last stage, and other files of the same model.
        let stages = |epochs: u32, file: &str| {
            recipe(
                "0.1",
                &format!("[model]\nfile = \"{file}\"\n[[stage]]\nname = \"a\"\nepochs = {epochs}\n"),
            )
        };
        let [a, b] = [stages(2, "/a.pt2"), stages(50, "/b.pt2")];
        let keys = differences(&[Some(&a), Some(&b)]);
        let keys: Vec<_> = keys.iter().map(|row| row["key"].as_str().unwrap()).collect();
        assert_eq!(keys, ["model.file", "stage[0].epochs"]);
        assert!(differences(&[None, None]).is_empty());
    }
}
