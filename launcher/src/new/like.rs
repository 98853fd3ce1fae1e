//! Imports a pretrained model for a recipe, and shows the settings with which it was published.

use super::draft::{Draft, setting};
use crate::trainer::{Paths, resolve};
use anyhow::{Context, bail};
use dtrain_common::recipe::Source;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The settings of images that a published model states, also where they are dtrain's default.
const PUBLISHED: [&str; 5] = ["image_size", "crop_fraction", "interpolation", "mean", "std"];

/// Imports the model `timm:NAME` with this number of outputs beside the recipe. Returns its file.
pub(super) fn import(
    source: &str,
    outputs: usize,
    scratch: bool,
    recipe: &Path,
    force: bool,
) -> anyhow::Result<PathBuf> {
    let name = source.strip_prefix("timm:").or_else(|| source.strip_prefix("torchvision:"));
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        bail!(
            "--like {source}: use timm:NAME or torchvision:NAME; import other models with `dtrain import`, and name the file with --model"
        );
    };
    if outputs == 0 {
        bail!(
            "--like {source}: the data has neither classes nor numbers in a table; use the tasks classify or regress"
        );
    }
    let file = recipe.with_file_name(format!("{}.pt2", name.replace('/', "_")));
    if file.exists() && !force {
        bail!("{} exists; name it with --model, or overwrite it with --force", file.display());
    }
    let mut import = Command::new(std::env::current_exe().context("cannot find dtrain itself")?);
    import.args(["import", source, "--classes", &outputs.to_string(), "-o"]).arg(&file);
    if force {
        import.arg("--force");
    }
    if !scratch {
        import.arg("--pretrained");
    }
    // It prints its own errors; its summary names lines that the recipe has.
    let done = import.stdout(Stdio::null()).status().context("cannot start `dtrain import`")?;
    if !done.success() {
        bail!("{source} was not imported, so no recipe was written");
    }
    Ok(file)
}

/// Adds the settings of images that the model's file states.
pub(super) fn publish(draft: &mut Draft) -> anyhow::Result<()> {
    let source = Source { name: "recipe".to_owned(), text: draft.least() };
    let resolved = resolve(&source, &[], Paths::Ignore)?;
    let data = resolved.recipe.section("data");
    if resolved.of_file.is_empty() {
        return Ok(());
    }
    let of_file = resolved.of_file.iter().filter_map(|key| key.strip_prefix("data."));
    let others = of_file.filter(|key| !PUBLISHED.contains(key));
    let keys = PUBLISHED.into_iter().chain(others);
    let mut about = "as the model was published";
    for (key, value) in keys.filter_map(|key| Some((key, data.get(key)?))) {
        if !draft.has(key) {
            draft.data.push(setting(key, value.clone(), about));
            about = "";
        }
    }
    Ok(())
}
