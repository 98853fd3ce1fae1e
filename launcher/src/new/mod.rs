//! `dtrain new`: writes a recipe from a look at the data and at the machine, or that of a run.
//!
//! The trainer looks at the data: [`look`] asks which layouts it has, and [`report`] what a training would find there. So
//! what is written has been checked as a launch checks it.

mod choose;
mod draft;
mod from_run;
mod like;
mod look;
mod machine;
mod names;
mod report;
mod sizes;
mod text;

use crate::ckpt::check_out;
use crate::cli::NewArgs;
use crate::stdout::print;
use crate::trainer::{Paths, resolve, schema_text};
use anyhow::{Context, bail};
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic;
use dtrain_common::recipe::Source;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::draft::Draft;
use self::machine::Machine;
use self::text::shell_word;

/// The JSON Schema beside a recipe.
const SCHEMA: &str = "recipe.schema.json";
/// Its title.
const TITLE: &str = "dtrain recipe";

/// Runs the command.
pub(crate) fn run(args: &NewArgs) -> anyhow::Result<ExitCode> {
    if let Some(run) = &args.from {
        let out = output(args, "recipe")?;
        let text = from_run::text(run, &out)?;
        return finish(args, &out, &text, "the settings of the run that are not defaults");
    }
    let (task, data) = names::task_and_data(args)?;
    if let (Some(like), false) = (&args.like, ["classify", "regress"].contains(&task.name)) {
        bail!(
            "--like {like}: it fits classify and regress, not {}; import the model, and name its file with --model",
            task.name
        );
    }
    let out = output(args, task.name)?;
    let machine = Machine::look();
    let model = choose::model(args, task)?;
    let mut draft = Draft::new(task, model);
    let about = match &data {
        None if args.like.is_some() || task.needs_file => {
            bail!(
                "{} needs data; name its folder or file",
                if args.like.is_some() { "--like" } else { task.name }
            )
        }
        None => {
            draft.generated();
            "generated data".to_owned()
        }
        Some(data) => {
            let look = look::ask(data, task, draft.file())?;
            let layout = choose::layout(look.layouts, args.layout.as_deref(), data)?;
            draft.of_layout(&layout, look.model.as_ref());
            layout.words
        }
    };
    let mut found = match draft.can_be_checked() {
        true => Some(report::ask(&draft)?),
        false => None,
    };
    if let Some(like) = &args.like {
        let outputs = found.as_ref().map_or(draft.outputs, |found| found.classes);
        let file = like::import(like, outputs, args.scratch, &out, args.force)?;
        draft.use_file(file, !args.scratch);
        if found.is_none() {
            found = Some(report::ask(&draft)?);
        }
    }
    let found = found.unwrap_or_default();
    if draft.file().is_some() {
        like::publish(&mut draft)?;
    }
    sizes::choose(&mut draft, &found, &machine);
    let counts = found.words();
    let about = if counts.is_empty() { about } else { format!("{about}: {counts}") };
    let text = draft.text(&about, &machine, &out);
    finish(args, &out, &text, &about)
}

/// Returns the recipe's file, which may be written.
fn output(args: &NewArgs, name: &str) -> anyhow::Result<PathBuf> {
    let out = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    if out.extension().is_none_or(|ending| ending != "toml") {
        bail!("-o {}: the name of a recipe ends in .toml", out.display());
    }
    check_out(&out, args.force)?;
    Ok(out)
}

/// Checks the recipe as a launch does, writes it, and names the next commands.
fn finish(args: &NewArgs, out: &Path, text: &str, about: &str) -> anyhow::Result<ExitCode> {
    let name = out.to_string_lossy();
    let source = Source { name: name.to_string(), text: text.to_owned() };
    let paths = if args.from.is_some() { Paths::Ignore } else { Paths::Check };
    resolve(&source, &[], paths)
        .with_context(|| format!("no recipe for this data was found, {} is not written", out.display()))?;
    let mut written = text.to_owned();
    if args.schema {
        let schema = out.with_file_name(SCHEMA);
        if let (Ok(old), false) = (fs::read(&schema), args.force)
            && !is_schema(&old)
        {
            bail!("{} exists and is no schema of recipes; --force overwrites it", schema.display());
        }
        write_atomic(&schema, schema_text()?.as_bytes())
            .with_context(|| format!("cannot write {}", schema.display()))?;
        written = format!("#:schema ./{SCHEMA}\n{written}");
    }
    write_atomic(out, written.as_bytes()).with_context(|| format!("cannot write {}", out.display()))?;
    let word = shell_word(&name);
    let look = match text.contains("kind = \"generated\"") || args.from.is_some() {
        true => format!("dtrain plan {word}"),
        false => format!("dtrain data {word} --show samples.png"),
    };
    print(&format!("{name}: {about}\n\nNext:\n  {look}\n  dtrain launch {word}\n"))?;
    Ok(ExitStatus::Success.into())
}

/// Returns whether a file is the schema that another `dtrain new` has written beside its recipe.
fn is_schema(file: &[u8]) -> bool {
    let schema = serde_json::from_slice::<serde_json::Value>(file);
    schema.is_ok_and(|schema| schema["title"] == TITLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_schema_of_recipes_is_one_that_dtrain_wrote() {
        let ours = dtrain_common::recipe::schema(&[], &serde_json::Value::Null).to_string();
        assert!(is_schema(ours.as_bytes()));
        assert!(!is_schema(b"{\"title\": \"my schema\"}") && !is_schema(b"notes"));
    }
}
