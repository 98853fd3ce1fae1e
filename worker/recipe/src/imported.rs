//! The settings of `[data]` that `dtrain import` has written into a model's file: how the model's authors prepare its images. They are the
//! defaults of a recipe with this file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use dtrain_common::recipe::Problem;
use dtrain_common::recipe::keys::Section;
use dtrain_common::recipe::kinds;
use serde::Deserialize;
use toml::{Table, Value};
use zip::ZipArchive;
use zip::read::{ArchiveOffset, Config};

use super::{Data, Recipe, Resize};

/// The entry below the archive's folder.
const NOTES: &str = "/extra/dtrain.json";
/// More than any import writes.
const MAX_BYTES: u64 = 64 << 20;
/// The settings that an import may write.
const KEYS: [&str; 7] = ["image_size", "channels", "resize", "crop_fraction", "interpolation", "mean", "std"];

/// The part of the notes that a recipe reads. Files of older imports have none.
#[derive(Deserialize)]
struct Notes {
    #[serde(default)]
    data: serde_json::Map<String, serde_json::Value>,
    /// The lines for a recipe, as TOML.
    #[serde(default)]
    recipe: Option<String>,
}

/// Fills in the settings of the file that the recipe does not state and that have an effect. Returns the keys of those that
/// have another value than before.
pub(super) fn fill(recipe: &mut Recipe, is_stated: &dyn Fn(&str) -> bool) -> Result<Vec<String>, Problem> {
    let Some(file) = recipe.program().map(Path::to_owned) else { return Ok(Vec::new()) };
    // A missing or foreign file has its own error, before anything is started.
    let Some(notes) = read(&file) else { return Ok(Vec::new()) };
    let error = |message: String| Problem::at("model.file", format!("{}: {message}", file.display()));
    let without_effect = recipe.settings_without_effect();
    let mut table = Table::try_from(&recipe.data).map_err(|source| error(source.to_string()))?;
    let mut filled = Vec::new();
    // The fraction belongs to the file's own way to resize.
    let resize =
        notes.data.get("resize").and_then(serde_json::Value::as_str).unwrap_or(Resize::Crop.as_str());
    let resizes_else = is_stated("data.resize") && recipe.data.resize.as_str() != resize;
    for key in Data::KEYS.iter().filter(|key| KEYS.contains(&key.name)) {
        let name = format!("data.{}", key.name);
        let Some(value) = notes.data.get(key.name) else { continue };
        let is_of_another_way = key.name == "crop_fraction" && resizes_else;
        if is_of_another_way || is_stated(&name) || without_effect.iter().any(|(key, _)| *key == name) {
            continue;
        }
        let value = Value::try_from(value).map_err(|source| error(source.to_string()))?;
        kinds::check(&key.kind, &value).map_err(|message| {
            error(format!("`{}` of the import is wrong: {message}; import the model again", key.name))
        })?;
        // `channels` comes first: a mean is of as many.
        let channels =
            table.get("channels").and_then(Value::as_integer).and_then(|of| usize::try_from(of).ok());
        if value.as_array().is_some_and(|values| Some(values.len()) != channels) {
            continue;
        }
        let is_other = table.get(key.name) != Some(&value);
        table.insert(key.name.to_owned(), value);
        filled.extend(is_other.then_some(name));
    }
    recipe.data =
        Value::from(table).try_into().map_err(|source: toml::de::Error| error(source.to_string()))?;
    Ok(filled)
}

/// Returns the lines of a recipe that the import of a model has printed: task, `[data]` and `[model]`. None for other files, and
/// for those of older imports.
pub fn lines_of_import(path: &Path) -> Option<Table> {
    read(path)?.recipe?.parse().ok()
}

fn read(path: &Path) -> Option<Notes> {
    let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|about| about.is_file()))?;
    // As the trainer opens it.
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut zip = ZipArchive::with_config(config, file).ok()?;
    let mut names = zip.file_names().filter_map(|name| name.ok().map(|name| name.into_owned()));
    let name = names.find(|name| name.ends_with(NOTES))?;
    drop(names);
    let entry = zip.by_name(&name).ok()?;
    let mut bytes = Vec::new();
    entry.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::*;
    use crate::Interpolation;

    /// Loads a recipe whose model's file has these notes.
    fn load(notes: &str, task: &str, sets: &[&str]) -> Result<Recipe, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.pt2");
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        zip.start_file("model/extra/dtrain.json", stored).unwrap();
        zip.write_all(notes.as_bytes()).unwrap();
        zip.finish().unwrap();
        let text =
            format!("task = {task:?}\n[data]\nroot = \"/r\"\n[model]\nfile = {path:?}\n[train]\nsteps = 1\n");
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        Recipe::parse("test", &text, &sets).map_err(|error| error.to_string())
    }

    const NOTES: &str = r#"{"data": {"channels": 3, "image_size": 64, "resize": "crop", "crop_fraction": 0.9, "interpolation": "bicubic",
        "mean": [0.5, 0.4, 0.3], "std": [1, 1, 1]}}"#;

    #[test]
    fn a_recipe_has_the_settings_of_the_file_that_it_does_not_state() {
        let recipe = load(NOTES, "classify", &["data.crop_fraction=1.0"]).unwrap();
        let data = &recipe.data;
        assert_eq!(
            (data.image_size, data.crop_fraction, data.interpolation),
            (64, 1.0, Interpolation::Bicubic)
        );
        assert_eq!((&data.mean[..], &data.std[..]), (&[0.5, 0.4, 0.3][..], &[1.0; 3][..]));
        assert_eq!(recipe.of_file, ["data.image_size", "data.interpolation", "data.mean", "data.std"]);
        // A saved recipe states all, whatever the file has become.
        let saved = Recipe::parse("saved", &recipe.to_toml().unwrap(), &[]).unwrap();
        assert_eq!(saved, recipe);
        assert!(saved.of_file.is_empty());
    }

    #[test]
    fn the_lines_of_the_import_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.pt2");
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        zip.start_file("m/extra/dtrain.json", SimpleFileOptions::default()).unwrap();
        zip.write_all(br#"{"recipe": "  task = \"program\"\n  [data]\n  target = \"mask\"\n"}"#).unwrap();
        zip.finish().unwrap();
        let lines = lines_of_import(&path).unwrap();
        assert_eq!(lines["data"]["target"].as_str(), Some("mask"));
        assert_eq!(lines_of_import(folder.path()), None);
    }

    #[test]
    fn values_of_other_channels_and_settings_without_effect_are_left_out() {
        let grey = load(NOTES, "classify", &["data.channels=1"]).unwrap();
        assert_eq!((&grey.data.mean[..], &grey.data.std[..]), (&[0.0][..], &[1.0][..]));
        let whole = load(NOTES, "classify", &["data.resize=none"]).unwrap();
        assert_eq!((whole.data.resize, whole.data.image_size), (Resize::None, 224));
        let stretched = load(NOTES, "classify", &["data.resize=stretch"]).unwrap();
        assert_eq!((stretched.data.resize, stretched.data.crop_fraction), (Resize::Stretch, 1.0));
        assert!(load(NOTES, "lm", &[]).unwrap().of_file.is_empty());
        let of_file = load(r#"{"data": {"channels": 1, "mean": [0.25]}}"#, "classify", &[]).unwrap().data;
        assert_eq!((of_file.channels, &of_file.mean[..], &of_file.std[..]), (1, &[0.25][..], &[1.0][..]));
    }

    #[test]
    fn older_files_decide_nothing_and_wrong_values_name_the_file() {
        let older = load(r#"{"images": {"mean": [0.5, 0.5, 0.5], "crop": 0.9}}"#, "classify", &[]).unwrap();
        assert_eq!(older.data.mean, Data::default().mean);
        assert!(older.of_file.is_empty());
        for notes in [r#"{"data": {"crop_fraction": 2}}"#, r#"{"data": {"interpolation": "nearest"}}"#] {
            let error = load(notes, "classify", &[]).unwrap_err();
            assert!(error.contains("model.file") && error.contains("import the model again"), "{error}");
        }
    }
}
