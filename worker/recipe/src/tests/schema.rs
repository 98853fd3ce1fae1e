//! The JSON Schema by a validator that knows nothing of dtrain: what editors say about recipes.

use std::fs;
use std::path::Path;

use jsonschema::Validator;

use super::*;

fn validator() -> Validator {
    jsonschema::validator_for(&Recipe::schema(None).unwrap()).unwrap()
}

fn problems(validator: &Validator, recipe: &str) -> Vec<String> {
    let table: toml::Table = recipe.parse().unwrap();
    let recipe = serde_json::to_value(table).unwrap();
    validator.iter_errors(&recipe).map(|error| format!("{}: {error}", error.instance_path)).collect()
}

/// Returns the recipes below a folder, and the whole ones in its pages.
fn recipes(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.display().to_string();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_dir() {
            recipes(&path, found);
        } else if ending == "toml" {
            found.push((name, fs::read_to_string(&path).unwrap()));
        } else if ending == "md" {
            let text = fs::read_to_string(&path).unwrap();
            let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
            found.extend(blocks.map(|block| (name.clone(), block.to_owned())));
        }
    }
}

#[test]
fn every_recipe_of_the_repository_fits_the_schema() {
    let validator = validator();
    let mut all: Vec<(String, String)> =
        Source::embedded().iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    all.extend(samples::TEXTS.iter().map(|text| ("a test".to_owned(), (*text).to_owned())));
    recipes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs"), &mut all);
    // Other TOML files have no task; `custom` has keys of its own trainer.
    let is_recipe =
        |text: &str| text.lines().any(|line| line.starts_with("task = ")) && !text.contains("\"custom\"");
    all.retain(|(_, text)| is_recipe(text));
    assert!(all.len() > 40, "{} recipes", all.len());
    for (name, text) in all {
        let problems = problems(&validator, &text);
        assert!(problems.is_empty(), "{name}: {problems:?}\n{text}");
    }
}

#[test]
fn wrong_keys_and_words_do_not_fit() {
    let validator = validator();
    for (text, place) in [
        ("task = \"classify\"\n[train]\nefective_batch = 3", "/train"),
        ("task = \"clasify\"", "/task"),
        ("[train]\nepochs = 3", ""),
        ("task = \"classify\"\n[data]\nchanges = [{ name = \"flip\", shares = 1 }]", "/data/changes/0"),
        ("task = \"segment\"\n[model]\nloss = { dices = 1.0 }", "/model/loss"),
        ("task = \"segment\"\n[model]\nloss = { dice = { smoth = 1.0 } }", "/model/loss"),
        ("task = \"classify\"\n[optim]\nlr = -1.0", "/optim/lr"),
        ("task = \"classify\"\n[model]\nbatchnorm = \"globl\"", "/model/batchnorm"),
    ] {
        let problems = problems(&validator, text);
        assert!(
            problems.iter().any(|problem| problem.starts_with(&format!("{place}: "))),
            "{text}: {problems:?}"
        );
    }
}

/// What editors offer: each word of a choice, and its meaning.
#[test]
fn editors_find_words_meanings_and_defaults() {
    let schema = Recipe::schema(None).unwrap();
    let model = &schema["properties"]["model"]["properties"];
    assert_eq!(model["batchnorm"]["anyOf"][0]["enum"][1], "synced");
    let dice = &model["loss"]["anyOf"][1]["properties"]["dice"]["anyOf"][1]["properties"]["smooth"];
    assert!(dice["description"].as_str().unwrap().ends_with('.'), "{dice}");
    let data = &schema["properties"]["data"]["properties"];
    assert_eq!(
        (&data["image_size"]["default"], &data["tokenizer"]["anyOf"][0]["enum"][0]),
        (&224.into(), &"chars".into())
    );
    let flip = data["changes"]["items"]["oneOf"]
        .as_array()
        .unwrap()
        .iter()
        .find(|change| change["properties"]["name"]["const"] == "flip");
    assert!(flip.unwrap()["properties"]["share"]["description"].is_string());
}
