//! The plan of a recipe: a training by dtrain's own worker.

use super::kinds::{Command, LaunchPlan, PlanKind, Seat, Training, headline, trainer_args};
use super::placement::{measure, placement};
use super::routing::{Home, Routing};
use super::size::Size;
use super::{gpu_check, limit, overfit};
use crate::cli::LaunchArgs;
use crate::executable::{is_built_in, is_toml};
use crate::trainer::{Paths, find_loadable_worker, resolve};
use anyhow::{Context, anyhow, bail};
use dtrain_agent::clock::StartTime;
use dtrain_agent::cluster::ranks::Placement;
use dtrain_common::batch::Partition;
use dtrain_common::recipe::{AnyRecipe, General, RecipeError, Resolved, Source};
use dtrain_common::run_dir::{Resume, RunDir, RunLock, Start};
use dtrain_common::text::counted;
use dtrain_common::units::ByteSize;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The longest recipe, in bytes, that the leader sends to the other nodes in one message.
const LONGEST_SENT: usize = 32 << 10;

/// Plans a training. On an error no file was written.
pub(super) fn plan(
    name: &str,
    args: &LaunchArgs,
    seat: Seat,
    start_time: StartTime,
) -> anyhow::Result<LaunchPlan> {
    let source = Source::find(name).map_err(|error| no_recipe(name, args, error))?;
    let mut resolved = match seat {
        Seat::Alone | Seat::Leader => Some(resolve(&source, &args.set, Paths::Check).map_err(|error| {
            match error.downcast::<RecipeError>() {
                Ok(error) => no_recipe(name, args, error),
                Err(error) => error,
            }
        })?),
        // The leader asks the trainer for all nodes.
        Seat::Member => None,
    };
    let mut stated = AnyRecipe::parse(&source, &args.set)?;
    if let Some(samples) = args.overfit {
        let text = toml::to_string(&overfit::recipe(&stated, samples, &args.set))?;
        let source = Source { text, ..source };
        // The user's overrides win against the changes of the check too.
        resolved = resolved.map(|_| resolve(&source, &args.set, Paths::Check)).transpose()?;
        stated = AnyRecipe::parse(&source, &args.set)?;
    }
    // Nobody takes the check for a training.
    let overfit_name = stated.train.overfit.map(|_| overfit::name(name));
    let name = overfit_name.as_deref().unwrap_or(name);
    let text = resolved.as_ref().map(|resolved| resolved.recipe.to_toml()).transpose()?;
    if let (Seat::Leader, Some(text)) = (seat, &text)
        && text.len() > LONGEST_SENT
    {
        let (bytes, most) = (ByteSize(text.len() as u64).exact(), ByteSize(LONGEST_SENT as u64).exact());
        bail!(
            "the recipe with all defaults has {bytes}, and the leader sends the other nodes at most {most}; shorten it"
        );
    }
    if args.stdin_rank.is_some() {
        bail!(
            "--stdin-rank is for programs and has no effect on a recipe, which reads nothing; leave it out"
        );
    }
    let size = measure(args, true)?;
    let nproc = size.nproc;
    // If a flag names a worker that is not started, the note explains it.
    let with_note = |error: anyhow::Error| match &size.note {
        Some(note) => error.context(note.clone()),
        None => error,
    };
    let routing = Routing::plan(&args.output, nproc, &args.contract.role, Home::Recipe).map_err(with_note)?;
    let routing = routing.of_trainer();
    let checked = size.gpus.as_ref().map(gpu_check::check).transpose()?;
    let mut notes = Vec::from_iter(size.note.clone());
    notes.extend(checked.into_iter().flatten());
    let of_file =
        resolved.iter().flat_map(|resolved| &resolved.of_file).map(String::as_str).collect::<Vec<_>>();
    if !of_file.is_empty() {
        notes.push(format!("{}: from model.file", of_file.join(", ")));
    }
    let partition = match &resolved {
        Some(resolved) if seat == Seat::Alone => partition(resolved, nproc)?,
        // The number of ranks is not known yet.
        _ => stated.train.effective_batch.to_string(),
    };
    let (own_devices, core_binding) = placement(args, &size)?;
    let worker = find_loadable_worker()?;
    let Ok(resume) = args.resume.as_deref().map_or(Ok(Resume::Auto), str::parse);
    let limited = limit::limit(&args.limits, true, start_time, |name| std::env::var(name).ok())?;
    let named = args.run_dir.as_deref();
    let (run_dir, lock, summary, worker_args) = match &resolved {
        None => {
            let summary = format!("{}{}", counted(nproc, "worker"), size.place);
            (named.map(RunDir::new), None, summary, Vec::new())
        }
        Some(resolved) => {
            let (run_dir, start, lock) = prepare(name, resolved, &resume, named, start_time)?;
            notes.extend(lock.no_lock_message());
            let (summary, effective) = summary(&size, &partition, &run_dir, &start, &resume)?;
            let worker_args = trainer_args(&run_dir, start, effective);
            (Some(run_dir), Some(lock), summary, worker_args)
        }
    };
    let again = run_dir.as_ref().map_or_else(String::new, |run_dir| args.again(name, run_dir.root()));
    Ok(LaunchPlan {
        nproc,
        placement: Placement::alone(nproc),
        devices: size.devices,
        own_devices,
        command: Command { arg0: worker.clone().into(), program: worker, args: worker_args },
        run_dir,
        limit: limited.as_ref().map(|limited| limited.limit),
        routing,
        headline: headline(notes, summary, &core_binding, limited.as_ref()),
        core_binding,
        kind: PlanKind::Training(Box::new(Training {
            stated,
            resolved,
            text,
            lock,
            again,
            asked: match resume {
                Resume::From(checkpoint) => Some(checkpoint),
                Resume::Auto | Resume::Never => None,
            },
        })),
    })
}

/// Returns a sentence about the run, and the checkpoint from which the trainer resumes.
fn summary<'a>(
    size: &Size,
    partition: &str,
    run_dir: &RunDir,
    start: &Start,
    resume: &'a Resume,
) -> anyhow::Result<(String, &'a Resume)> {
    let (workers, folder) = (counted(size.nproc, "worker"), run_dir.root().display());
    let place = &size.place;
    let summary = format!("{workers}{place}; effective batch {partition}; run directory {folder}");
    let Start::Resume(checkpoint) = start else {
        return Ok((summary, resume));
    };
    let summary = format!("{summary}; resuming from {}", checkpoint.display());
    let asked = match resume {
        Resume::From(asked) if run_dir.resumes_newest(asked)? => asked,
        _ => return Ok((summary, resume)),
    };
    let since = format!(
        "{summary}, the newest since the run started from {}; to start from that again, remove {}",
        asked.display(),
        run_dir.resume().display()
    );
    Ok((since, &Resume::Auto))
}

/// Explains an unknown recipe: the name may be a program's.
fn no_recipe(name: &str, args: &LaunchArgs, error: RecipeError) -> anyhow::Error {
    let path = Path::new(name);
    if is_built_in(path) || is_toml(path) {
        return error.into();
    }
    let message = error.to_string();
    let message = message.trim_end_matches('.');
    if !path.is_file() {
        let bare = !name.contains('/');
        return anyhow!("{message}{}", if bare { ". No program in PATH has this name" } else { "" });
    }
    let line = |interpreter: &str| {
        let words = ["--", interpreter, name].map(OsStr::new).into_iter();
        args.line(words.chain(args.arguments()))
    };
    anyhow!(
        "{message}. Start a Python script with `{}`, a shell script with `{}`",
        line("python3"),
        line("bash")
    )
}

/// Describes the partition of a run's steps, or of its stages one after another.
fn partition(resolved: &Resolved, nproc: usize) -> anyhow::Result<String> {
    let recipe: &General = &resolved.recipe;
    let of_stage = |number| {
        let General { train, memory, .. } = recipe.of_stage(number);
        let micro_batch = memory.micro_batch.value();
        let cut = Partition::in_groups(train.effective_batch, nproc, micro_batch, resolved.group);
        Ok(match recipe.stage.get(number) {
            Some(stage) => cut.with_context(|| format!("stage {:?}", stage.name))?,
            None => cut?,
        }
        .to_string())
    };
    let mut words = (0..recipe.stages()).map(of_stage).collect::<anyhow::Result<Vec<_>>>()?;
    words.dedup();
    Ok(words.join(", then "))
}

/// Prepares the named run directory, or a new one.
fn prepare(
    name: &str,
    recipe: &Resolved,
    resume: &Resume,
    named: Option<&Path>,
    start_time: StartTime,
) -> anyhow::Result<(RunDir, Start, RunLock)> {
    if let Some(named) = named {
        let run_dir = RunDir::new(named);
        let (start, lock) = run_dir.begin(recipe, resume)?;
        return Ok((run_dir, start, lock));
    }
    let root = RunDir::default_root(name, start_time.wall);
    let parent = root.parent().unwrap_or(Path::new("."));
    let parent_was_there = parent.exists();
    fs::create_dir_all(parent).with_context(|| format!("cannot create the folder {}", parent.display()))?;
    let root = claim(&root)?;
    let run_dir = RunDir::new(&root);
    let prepared = run_dir.begin(recipe, resume).inspect_err(|_| {
        // Both calls fail if the folder is not empty.
        let _ = fs::remove_dir(&root);
        if !parent_was_there {
            let _ = fs::remove_dir(parent);
        }
    });
    let (start, lock) = prepared?;
    Ok((run_dir, start, lock))
}

/// Creates a new folder, with a number in its name if another launch of the same second has the name.
fn claim(root: &Path) -> anyhow::Result<PathBuf> {
    let mut candidate = root.to_owned();
    let mut number = 1;
    while let Err(error) = fs::create_dir(&candidate) {
        if error.kind() != ErrorKind::AlreadyExists {
            return Err(error).with_context(|| format!("cannot create the folder {}", candidate.display()));
        }
        number += 1;
        candidate = format!("{}-{number}", root.display()).into();
    }
    Ok(candidate)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn launches_of_the_same_second_get_folders_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("demo-1");
        let names: Vec<_> = (0..3).map(|_| claim(&root).unwrap()).collect();
        assert_eq!(names, [root.clone(), folder.path().join("demo-1-2"), folder.path().join("demo-1-3")]);
    }
}
