//! `dtrain ckpt prune`: removes older checkpoints by the training's rule, and leftovers of a crash.

use super::find::run_dir;
use super::inventory::{Entry, entries, leftovers, name, set_aside, size as size_of};
use super::problem::{failed, sentence};
use crate::cli::PruneArgs;
use crate::stdout::print;
use anyhow::{Context, bail};
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::none_if_missing;
use dtrain_common::recipe::AnyRecipe;
use dtrain_common::run_dir::{Keep, REMOVED, RunDir, Stretch, rename_for_removal};
use dtrain_common::text::{counted, size};
use dtrain_common::units::Span;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// A partial checkpoint that changed within this time may still be in use by a run.
const YOUNG: Duration = Duration::from_secs(600);

pub(super) fn run(args: &PruneArgs) -> anyhow::Result<ExitCode> {
    let run_dir = run_dir(&args.run_dir)?;
    let _claim = (!args.dry_run).then(|| run_dir.claim()).transpose()?;
    let mut entries = entries(&run_dir)?;
    // An interrupted rollback may need every checkpoint after this step.
    let interrupted_at = run_dir.interrupted_at()?;
    entries.retain(|entry| interrupted_at.is_none_or(|step| entry.step <= step));
    let (keep, why) = keep(args, &run_dir)?;
    print(&format!("{}: {why}\n", run_dir.checkpoints().display()))?;
    let mut notes = Vec::new();
    let mut doomed: Vec<_> = chosen(&run_dir, &entries, &keep, args.damaged, &mut notes)
        .into_iter()
        .map(|entry| (entry.folder.clone(), entry.bytes))
        .collect();
    for leftover in leftovers(&run_dir, SystemTime::now())? {
        if leftover.comes_back(&run_dir) {
            let name = leftover.name();
            notes.push(format!("kept {name}: the next start of the run renames it back"));
        } else if leftover.is_partial() && leftover.age < YOUNG && !args.force {
            let (name, seconds) = (leftover.name(), leftover.age.as_secs());
            notes.push(format!(
                "kept {name}: it changed {seconds} s ago, so a run may be writing it; --force removes it"
            ));
        } else {
            doomed.push((leftover.path, leftover.bytes));
        }
    }
    rollbacks(args.rollbacks, &run_dir, interrupted_at, &mut doomed, &mut notes)?;
    let mut freed = 0;
    for (path, bytes) in &doomed {
        let name = name(path);
        let what = match args.dry_run {
            true => "would remove",
            false => {
                remove(path).map_err(failed)?;
                "removed"
            }
        };
        print(&format!("{what} {name}, {}\n", size(*bytes)))?;
        freed += bytes;
    }
    for note in notes {
        print(&format!("{note}\n"))?;
    }
    let (folders, bytes) = (counted(doomed.len(), "folder"), size(freed));
    let total = match (doomed.len(), args.dry_run) {
        (0, _) => "nothing to remove\n".to_owned(),
        (_, true) => format!("{folders} and {bytes} would be removed; nothing was changed\n"),
        (_, false) => format!("{folders} removed, {bytes} freed\n"),
    };
    print(&total)?;
    Ok(ExitStatus::Success.into())
}

/// Removes folders of rollbacks if `wanted`, unless the next start of the run needs them.
fn rollbacks(
    wanted: bool,
    run_dir: &RunDir,
    interrupted_at: Option<u64>,
    doomed: &mut Vec<(PathBuf, u64)>,
    notes: &mut Vec<String>,
) -> anyhow::Result<()> {
    for set_aside in set_aside(run_dir)? {
        let name = name(&set_aside.folder);
        if set_aside.is_interrupted() {
            let steps = match interrupted_at {
                Some(step) => format!(", and all after step {step}"),
                None => String::new(),
            };
            notes.push(format!("kept {name}{steps}: the next start of the run completes this rollback"));
        } else if wanted && interrupted_at.is_some() {
            notes.push(format!("kept {name}: the next start of the run completes another rollback first"));
        } else if wanted {
            let bytes = size_of(&set_aside.folder);
            doomed.push((set_aside.folder, bytes));
        } else {
            let count = counted(set_aside.steps.len(), "checkpoint");
            notes.push(format!("kept {name}: a rollback set aside {count} in it; --rollbacks removes it"));
        }
    }
    Ok(())
}

/// Returns the checkpoints to remove: whole ones as the run itself would, and damaged ones if `damaged`. Keeps the
/// targets of `latest` and `best`, and checkpoints that may be whole although they cannot be read.
fn chosen<'a>(
    run_dir: &RunDir,
    entries: &'a [Entry],
    keep: &Keep,
    damaged: bool,
    notes: &mut Vec<String>,
) -> Vec<&'a Entry> {
    let whole: Vec<_> = entries.iter().filter(|entry| entry.is_whole()).map(|entry| entry.step).collect();
    let steps: Vec<_> = entries.iter().map(|entry| entry.step).collect();
    let excess = run_dir.excess(keep, &steps, |step| whole.contains(&step));
    let mut chosen = Vec::new();
    for entry in entries {
        let name = entry.name();
        let link = match entry {
            Entry { latest: true, .. } => Some("latest"),
            Entry { best: true, .. } => Some("best"),
            _ => None,
        };
        match (&entry.problem, link) {
            (None, _) if excess.contains(&entry.step) => chosen.push(entry),
            (None, Some(link)) if keep.excess(&whole).any(|step| step == entry.step) => {
                notes.push(format!("kept {name}: `{link}` points to it"));
            }
            (None, _) => {}
            (Some(_), _) if entry.is_newer() => notes.push(format!("kept {name}: a newer dtrain wrote it")),
            (Some(problem), _) if !entry.is_damaged() => {
                let why = sentence(problem);
                notes.push(format!("kept {name}: it may be whole, but could not be checked: {why}"));
            }
            (Some(_), _) if !damaged => {
                notes.push(format!("kept {name}: it is damaged and does not count; --damaged removes it"));
            }
            (Some(_), Some(link)) => notes.push(format!("kept {name}: `{link}` points to it")),
            (Some(_), None) => chosen.push(entry),
        }
    }
    chosen
}

/// Returns the rule, and its explanation for the user.
fn keep(args: &PruneArgs, run_dir: &RunDir) -> anyhow::Result<(Keep, String)> {
    let path = run_dir.recipe();
    // Not needed if the command line has both settings.
    let settings = match (args.keep, args.keep_every) {
        (Some(_), Some(_)) => None,
        _ if !path.exists() => bail!(
            "cannot read how many checkpoints the run keeps: {} does not exist; give --keep and --keep-every (0: \
             none)",
            path.display()
        ),
        _ => match AnyRecipe::load(&path.to_string_lossy(), &[]) {
            Ok(recipe) => Some(recipe.checkpoint.clone()),
            Err(error) => bail!(
                "cannot read how many checkpoints the run keeps: {error}; give --keep and --keep-every (0: none)"
            ),
        },
    };
    let recipes = |setting: &str| format!(" ({setting} of {})", path.display());
    let (newest, of) = match (args.keep, &settings) {
        (None, Some(settings)) => (settings.keep, recipes("checkpoint.keep")),
        (keep, _) => (keep.unwrap_or(1) as usize, String::new()),
    };
    let mut why = format!("keeping the newest {newest}{of}");
    let (span, of) = match (args.keep_every, settings.and_then(|settings| settings.keep_every)) {
        (Some(0), _) | (None, None) => return Ok((Keep::newest(newest), why)),
        (Some(steps), _) => (Span::Steps(steps), String::new()),
        (None, Some(span)) => (span, recipes("checkpoint.keep_every")),
    };
    why.push_str(&format!(" and the last of every {span}{of}"));
    let stretches = match (stretches(run_dir), span) {
        (Ok(stretches), _) => stretches,
        // Of a run that has not begun, or of an earlier version: steps are counted over the whole run.
        (Err(_), Span::Steps(_)) if !run_dir.plan().exists() => vec![whole_run(1)],
        (Err(error), _) => return Err(error),
    };
    Ok((Keep::newest(newest).with_every(span, &stretches), why))
}

/// Reads the stretches of the run from plan.json.
fn stretches(run_dir: &RunDir) -> anyhow::Result<Vec<Stretch>> {
    #[derive(Deserialize)]
    struct Plan {
        steps_per_epoch: u64,
        #[serde(default)]
        stages: Vec<Stage>,
        /// Only if the data changed its size.
        #[serde(default)]
        stretches: Vec<Stretch>,
    }
    #[derive(Deserialize)]
    struct Stage {
        /// The first and the last step, from 1.
        steps: [u64; 2],
        steps_per_epoch: u64,
    }
    let path = run_dir.plan();
    let way_out = "so the windows of keep_every are unknown; give --keep-every 0 to keep the newest alone";
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}, {way_out}", path.display()))?;
    let plan: Plan = serde_json::from_str(&text)
        .with_context(|| format!("{} is not the plan of a run, {way_out}", path.display()))?;
    let of = |(stage, Stage { steps: [first, _], steps_per_epoch }): (usize, &Stage)| Stretch {
        stage,
        begins: first.saturating_sub(1),
        epoch_steps: 0,
        steps_per_epoch: *steps_per_epoch,
    };
    Ok(match (&plan.stretches[..], &plan.stages[..]) {
        ([], []) => vec![whole_run(plan.steps_per_epoch)],
        ([], stages) => stages.iter().enumerate().map(of).collect(),
        (stretches, _) => stretches.to_vec(),
    })
}

fn whole_run(steps_per_epoch: u64) -> Stretch {
    Stretch { stage: 0, begins: 0, epoch_steps: 0, steps_per_epoch }
}

/// Removes a folder. A checkpoint stays whole or disappears.
fn remove(path: &Path) -> anyhow::Result<()> {
    let hidden = if name(path).starts_with(REMOVED) { Ok(path.to_owned()) } else { rename_for_removal(path) };
    let removed = none_if_missing(hidden.and_then(fs::remove_dir_all));
    removed.map(drop).with_context(|| format!("cannot remove {}", path.display()))
}
