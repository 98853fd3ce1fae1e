//! Recognises how training data is laid out: folders of classes, images with masks, tables and so on, as settings of `[data]`
//! for `dtrain new`.
//!
//! Names decide first, and contents where names cannot: the values of masks, the columns of tables, the channels of images.
//! Whether a training can start with the settings is the survey's answer, not this crate's. No tensors and no ranks.

mod classes;
mod coco;
mod columns;
mod images;
mod lists;
mod mask_values;
mod packs;
mod pair_names;
mod pairs;
mod roles;
mod texts;
mod tokens;
mod tree;

use std::path::Path;

use dtrain_common::look::{Layout, Look, LookAnswer, LookQuestion};

use self::tree::Tree;

/// Returns the layouts of some data that fit a target of the question.
pub fn look(question: &LookQuestion) -> LookAnswer {
    let model = question.model.as_deref().and_then(dtrain_recipe::lines_of_import);
    let of_model = model.as_ref().map(target_of).into_iter();
    let targets: Vec<&str> = match question.targets.as_slice() {
        [] => of_model.collect(),
        stated => stated.iter().map(String::as_str).collect(),
    };
    let [first, ..] = targets.as_slice() else {
        return Err(
            "the model's file does not state its inputs; import the model again with this version".to_owned()
        );
    };
    let path = question.data.as_path();
    let shown = path.display();
    let about = std::fs::metadata(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let (mut layouts, mut errors) = (Vec::<Layout>::new(), Vec::new());
    for target in &targets {
        let found = if about.is_dir() { of_folder(path, target) } else { of_file(path, target) };
        match found {
            Ok(found) => {
                let is_new = |one: &Layout| !layouts.iter().any(|known| known.name == one.name);
                let found: Vec<_> = found.into_iter().filter(is_new).collect();
                layouts.extend(found);
            }
            Err(error) => errors.push(error),
        }
    }
    match (layouts.is_empty(), errors.into_iter().next()) {
        (false, _) => Ok(Look { layouts, model }),
        (true, Some(error)) => Err(error),
        (true, None) => Err(format!("{shown} has no {}; {}", wanted(first), needed(first))),
    }
}

/// Returns the learning target of the recipe's lines for a model.
fn target_of(lines: &toml::Table) -> &str {
    let data = lines.get("data").and_then(toml::Value::as_table);
    let of = |key: &str| data.and_then(|data| data.get(key)).and_then(toml::Value::as_str);
    let task = lines.get("task").and_then(toml::Value::as_str);
    match (of("target"), task) {
        (Some("tokens"), _) | (None, Some("lm")) => "tokens",
        (Some("classes"), _) => "classes",
        (Some("mask"), _) | (None, Some("segment")) => "mask",
        (Some("map"), _) => "map",
        (Some("vector"), _) | (None, Some("regress")) => "vector",
        _ if of("kind") == Some("text") || data.is_some_and(|data| data.contains_key("tokenizer")) => {
            "tokens"
        }
        _ => "class",
    }
}

fn of_file(path: &Path, target: &str) -> Result<Vec<Layout>, String> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
    Ok(match ending.as_deref() {
        Some("csv" | "tsv" | "jsonl" | "ndjson") => vec![columns::of_table(path, target)?],
        Some("bin") if target == "tokens" => vec![tokens::of_file(path)?],
        _ if target == "tokens" => vec![texts::of_file(path)?],
        Some("tar" | "parquet") => {
            let folder = path.parent().unwrap_or(Path::new("")).display();
            return Err(format!("{} is one of several files; name their folder, {folder}", path.display()));
        }
        _ => Vec::new(),
    })
}

fn of_folder(path: &Path, target: &str) -> Result<Vec<Layout>, String> {
    let tree = Tree::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if tree.is_empty() {
        return Err(format!("{} is an empty folder; {}", path.display(), needed(target)));
    }
    let mut found = match target {
        "class" => [classes::find(&tree), lists::find(&tree)].concat(),
        "classes" => classes::of_sets(&tree).into_iter().collect(),
        "mask" => [pairs::of_masks(&tree)?, coco::find(&tree)].concat(),
        "map" => pairs::of_maps(&tree),
        "vector" => classes::of_numbers(&tree).into_iter().collect(),
        "tokens" => texts::of_folder(&tree)?,
        _ => Vec::new(),
    };
    found.extend(packs::find(&tree, target)?);
    // Tables beside other layouts often describe these.
    if found.is_empty() {
        found = columns::of_folder(&tree, target)?;
    }
    Ok(found)
}

/// Returns what a recipe of this target trains on.
fn wanted(target: &str) -> &'static str {
    match target {
        "class" => "images in class folders",
        "classes" => "images with a table classes.csv",
        "mask" => "images with masks",
        "map" => "images with maps",
        "vector" => "images with a table targets.csv",
        _ => "text",
    }
}

/// Returns what the folder needs.
fn needed(target: &str) -> &'static str {
    match target {
        "class" => "put the images of each class into a folder with its name, such as DATA/train/cat/1.jpg",
        "classes" => "put the images and a table classes.csv into DATA/train",
        "mask" => "put images into DATA/train, and their masks with the same names into DATA/train_masks",
        "map" => "put images into DATA/train, and their maps with the same names into DATA/train_masks",
        "vector" => "put the images and a table targets.csv into DATA/train",
        _ => "name a .txt file, a folder of them, a table with texts, or token files (.bin)",
    }
}

#[cfg(test)]
mod tests;
