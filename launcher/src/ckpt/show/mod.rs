//! `dtrain ckpt show`: the contents of a checkpoint.

mod sizes;

use self::sizes::Sizes;
use super::find::{checkpoint, find};
use super::inventory;
use super::ls::epochs;
use super::problem::{failed, sentence};
use crate::cli::ShowArgs;
use crate::stdout::{join_causes, print};
use crate::times::{local_time, time_value};
use crate::trainer::{Paths, ask};
use anyhow::Context;
use dtrain_common::exit::ExitStatus;
use dtrain_common::manifest::{FILE_NAME, Manifest};
use dtrain_common::recipe::{AnyRecipe, Resolved, Source};
use dtrain_common::run_dir::Differences;
use dtrain_common::text::{Align::Left, Align::Right, columns, counted, grouped, size};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A comparison with another recipe.
struct Comparison {
    with: PathBuf,
    /// The settings of the experiment that differ: key, here, there.
    differences: Differences,
    /// What is not compared, and why.
    note: Option<String>,
}

/// The data to show.
struct Shown {
    folder: PathBuf,
    manifest: Manifest,
    /// `None` if the checkpoint is damaged.
    sizes: Option<Sizes>,
    comparison: Option<Comparison>,
    problem: Option<String>,
}

pub(super) fn run(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let folder = checkpoint(&args.checkpoint)?;
    let manifest = Manifest::read(&folder).map_err(failed)?;
    let comparison = compare(&manifest, &folder, args.against.as_deref())?;
    let problem = manifest.check_sizes(&folder).err().as_ref().map(sentence);
    let sizes = match problem {
        None => Some(Sizes::of(&folder, &manifest).map_err(failed)?),
        Some(_) => None,
    };
    let shown = Shown { folder, manifest, sizes, comparison, problem };
    print(&if args.json { format!("{}\n", shown.object()?) } else { shown.text() })?;
    Ok(ExitStatus::Success.into())
}

/// Compares with the given recipe, or with the recipe beside the checkpoints; `None` without a recipe.
fn compare(manifest: &Manifest, folder: &Path, against: Option<&Path>) -> anyhow::Result<Option<Comparison>> {
    let compared = |with: PathBuf, resolved: Resolved, note| {
        let differences = manifest.recipe.differences(&resolved.recipe, &resolved.experiment);
        Ok(Some(Comparison { with, differences, note }))
    };
    let path = match against {
        Some(path) if path.extension() == Some(OsStr::new("toml")) => path.to_owned(),
        Some(path) => {
            // The error names both meanings.
            find(path).context("--against is neither a checkpoint nor a recipe (.toml)")?;
            let other = checkpoint(path)?;
            let recipe = Manifest::read(&other).map_err(failed)?.recipe;
            let source = Source { name: other.display().to_string(), text: recipe.to_toml()? };
            let asked = ask(&source, &[], Paths::Ignore).and_then(|answer| Ok(answer?));
            let (resolved, note) = known(asked, recipe);
            return compared(other, resolved, note);
        }
        None => {
            let real =
                fs::canonicalize(folder).with_context(|| format!("cannot find {}", folder.display()))?;
            // Use the path as the user wrote it, if that works.
            match [folder, &real].into_iter().find_map(recipe_beside) {
                Some(path) => path,
                None => return Ok(None),
            }
        }
    };
    let source = Source::find(&path.to_string_lossy())?;
    let asked = match ask(&source, &[], Paths::Ignore) {
        Ok(answer) => Ok(answer?),
        Err(error) => Err(error),
    };
    let (resolved, note) = known(asked, AnyRecipe::parse(&source, &[])?);
    compared(path, resolved, note)
}

/// Returns the trainer's answer; without one the recipe of which only the general settings are known, and a note.
fn known(asked: anyhow::Result<Resolved>, recipe: AnyRecipe) -> (Resolved, Option<String>) {
    match asked {
        Ok(resolved) => (resolved, None),
        Err(error) => {
            let note = format!("[data] and [model] are not compared: {}", join_causes(&error));
            (Resolved { recipe, experiment: Vec::new(), group: None, of_file: Vec::new() }, Some(note))
        }
    }
}

/// Returns the recipe of the run that has this checkpoint, also if a rollback has set it aside.
fn recipe_beside(checkpoint: &Path) -> Option<PathBuf> {
    let mut checkpoints = checkpoint.parent()?;
    if inventory::name(checkpoints).starts_with("rollback-") {
        checkpoints = checkpoints.parent()?;
    }
    let path = checkpoints.parent()?.join("recipe.toml");
    (checkpoints.file_name() == Some(OsStr::new("checkpoints")) && path.exists()).then_some(path)
}

impl Shown {
    fn text(&self) -> String {
        let mut out = format!("{}\n", self.folder.display());
        if let Some(problem) = &self.problem {
            out.push_str(&format!("damaged: {problem}\n"));
        }
        out.push('\n');
        columns(&mut out, 2, &[Left, Left], &facts(&self.folder, &self.manifest));
        if let Some(sizes) = &self.sizes {
            out.push('\n');
            let mut rows = vec![["", "tensors", "elements", "size"].map(str::to_owned).to_vec()];
            rows.extend(sizes.rows().map(|(indent, name, share)| {
                let name = format!("{}{name}", " ".repeat(indent));
                vec![name, grouped(share.tensors), grouped(share.elements), size(share.bytes)]
            }));
            columns(&mut out, 2, &[Left, Right, Right, Right], &rows);
        }
        match &self.comparison {
            None => out.push_str("\nNo recipe.toml to compare with.\n"),
            Some(Comparison { with, differences, .. }) if differences.is_empty() => {
                out.push_str(&format!("\nThe same experiment as {}.\n", with.display()));
            }
            Some(Comparison { with, differences, .. }) => {
                let count = counted(differences.len(), "setting");
                out.push_str(&format!("\n{count} different from {}:\n", with.display()));
                let mut rows = vec![["key", "here", "there"].map(str::to_owned).to_vec()];
                rows.extend(differences.iter().cloned().map(|(key, here, there)| vec![key, here, there]));
                columns(&mut out, 2, &[Left, Left, Left], &rows);
            }
        }
        if let Some(note) = self.comparison.as_ref().and_then(|comparison| comparison.note.as_deref()) {
            out.push_str(&format!("{note}\n"));
        }
        out
    }

    fn object(&self) -> anyhow::Result<Value> {
        let written = fs::metadata(self.folder.join(FILE_NAME)).and_then(|about| about.modified());
        let differences = |Comparison { with, differences, note }: &Comparison| {
            let difference = |(key, here, there): &(String, String, String)| json!({"key": key, "here": here, "there": there});
            let differences: Vec<_> = differences.iter().map(difference).collect();
            match note {
                None => json!({"with": with, "differences": differences}),
                Some(note) => json!({"with": with, "differences": differences, "note": note}),
            }
        };
        Ok(json!({
            "path": self.folder,
            "bytes": inventory::size(&self.folder),
            "written": time_value(written.ok()),
            "problem": self.problem,
            "manifest": serde_json::to_value(&self.manifest)?,
            "sizes": self.sizes.as_ref().map(Sizes::object),
            "recipe": self.comparison.as_ref().map(differences),
        }))
    }
}
/// Returns facts from the manifest, by name.
fn facts(folder: &Path, manifest: &Manifest) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut fact = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    fact("task", manifest.task.clone());
    fact("model", manifest.model.clone());
    fact("classes", classes(manifest));
    fact("step", manifest.step.to_string());
    if let Some(stage) = &manifest.stage {
        fact("stage", stage.clone());
    }
    fact("epochs", epochs(manifest));
    fact("samples", grouped(manifest.samples));
    fact("written by", counted(manifest.world_size, "rank"));
    if let Ok(time) = fs::metadata(folder.join(FILE_NAME)).and_then(|about| about.modified()) {
        fact("written", local_time(time));
    }
    let (dtrain, libtorch, format) = (&manifest.dtrain, &manifest.libtorch, manifest.format);
    fact("versions", format!("dtrain {dtrain}, libtorch {libtorch}, format {format}"));
    for (figure, value) in &manifest.metrics {
        fact(figure, format!("{value}"));
    }
    if let Some(best) = &manifest.best {
        fact("best so far", format!("{} {} at step {}", best.by, best.value, best.step));
    }
    if let Some(scale) = manifest.loss_scale {
        let steps = counted(scale.clean_steps as usize, "step");
        fact("loss scale", format!("{}, for {steps}", scale.scale));
    }
    if let Some(updates) = manifest.ema_updates {
        fact("average", counted(updates as usize, "move"));
    }
    rows
}

/// Returns the number of classes, and the first names.
fn classes(manifest: &Manifest) -> String {
    /// More names do not fit a line; `--json` has all.
    const NAMED: usize = 8;
    let mut text = grouped(manifest.classes as u64);
    let names = &manifest.class_names;
    if !names.is_empty() {
        let first: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
        let more = if names.len() > NAMED { ", ..." } else { "" };
        text.push_str(&format!(": {}{more}", first.join(", ")));
    }
    text
}
