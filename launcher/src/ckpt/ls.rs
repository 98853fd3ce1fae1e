//! `dtrain ckpt ls`: the checkpoints of a run.

use super::figures::{Figures, figures};
use super::find::run_dir;
use super::inventory::{self, Entry, Leftover, entries, leftovers, name, set_aside};
use super::problem::{kind, sentence};
use crate::cli::LsArgs;
use crate::stdout::print;
use crate::times::{local_time, time_value};
use dtrain_common::exit::ExitStatus;
use dtrain_common::manifest::Manifest;
use dtrain_common::run_dir::{Rollback, RunDir, SetAside, target};
use dtrain_common::text::{Align::Left, Align::Right, columns, counted, grouped, size};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::iter::zip;
use std::process::ExitCode;
use std::time::SystemTime;

/// A checkpoint with its figures.
type Listed = (Figures, Entry);

pub(super) fn run(args: &LsArgs) -> anyhow::Result<ExitCode> {
    let run_dir = run_dir(&args.run_dir)?;
    let entries = entries(&run_dir)?;
    let listed: Vec<Listed> = zip(figures(&run_dir, &entries), entries).collect();
    let leftovers = leftovers(&run_dir, SystemTime::now())?;
    let set_aside = set_aside(&run_dir)?;
    let json = || format!("{}\n", object(&run_dir, &listed, &leftovers, &set_aside));
    let table = || text(&run_dir, &listed, &leftovers, &set_aside);
    print(&if args.json { json() } else { table() })?;
    Ok(ExitStatus::Success.into())
}

fn text(run_dir: &RunDir, entries: &[Listed], leftovers: &[Leftover], set_aside: &[SetAside]) -> String {
    let bytes = entries.iter().map(|(_, entry)| entry.bytes).sum();
    let (folder, count) = (run_dir.checkpoints(), counted(entries.len(), "checkpoint"));
    let mut out = format!("{}: {count}, {}\n", folder.display(), size(bytes));
    if !entries.is_empty() {
        out.push('\n');
        table(&mut out, entries);
    }
    let mut notes = Vec::new();
    for (_, entry) in entries {
        let problem = entry.problem.as_ref();
        notes.extend(problem.map(|problem| format!("{}: {}", entry.name(), sentence(problem))));
    }
    for (name, link) in [("latest", run_dir.latest()), ("best", run_dir.best())] {
        if let (Some(target), None) = (target(&link), run_dir.linked(&link)) {
            let target = target.display();
            notes.push(format!("{name} points to {target}, which is not a checkpoint of this run"));
        }
    }
    notes.extend(set_aside.iter().map(aside));
    notes.extend(leftovers.iter().map(|leftover| {
        let (name, bytes) = (leftover.name(), size(leftover.bytes));
        if leftover.comes_back(run_dir) {
            return format!("{name}: a checkpoint, {bytes}; the next start of the run renames it back");
        }
        let state = if leftover.is_partial() { "not finished" } else { "partly removed" };
        format!("{name}: {state}, {bytes}; if no run uses it, `dtrain ckpt prune` removes it")
    }));
    if !notes.is_empty() {
        out.push_str(&format!("\n{}\n", notes.join("\n")));
    }
    out
}

/// Describes a rollback's folder, and how to restore its checkpoints.
fn aside(set_aside: &SetAside) -> String {
    let SetAside { folder, rollback, steps } = set_aside;
    let when = match rollback {
        Some(Rollback { from, to, .. }) => format!(" when the run went back from step {from} to step {to}"),
        None => String::new(),
    };
    let (name, bytes) = (name(folder), size(inventory::size(folder)));
    let listed = steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if set_aside.is_interrupted() {
        return format!(
            "{name}: not completed{when}, {bytes}; steps {listed}; the next start of the run completes it"
        );
    }
    if steps.is_empty() {
        return format!("{name}: no checkpoint left, {bytes}; `dtrain ckpt prune --rollbacks` removes it");
    }
    format!("{name}: set aside{when}, {bytes}; steps {listed}; `dtrain launch --resume PATH` restores one")
}

fn table(out: &mut String, entries: &[Listed]) {
    let names: BTreeSet<&str> =
        entries.iter().flat_map(|(figures, _)| figures.keys().map(String::as_str)).collect();
    let known =
        |manifest: Option<&Manifest>, show: fn(&Manifest) -> String| manifest.map_or("-".into(), show);
    let mut title = vec!["step", "epochs", "samples", "size", "written"];
    title.extend(&names);
    title.push("marks");
    let mut rows: Vec<Vec<String>> = vec![title.into_iter().map(str::to_owned).collect()];
    for (figures, entry) in entries {
        let manifest = entry.manifest.as_ref();
        let mut row = vec![
            entry.step.to_string(),
            known(manifest, epochs),
            known(manifest, |manifest| grouped(manifest.samples)),
            size(entry.bytes),
            entry.written.map_or_else(|| "-".to_owned(), local_time),
        ];
        row.extend(
            names
                .iter()
                .map(|name| figures.get(*name).map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"))),
        );
        row.push(marks(entry).join(" "));
        rows.push(row);
    }
    let mut align = vec![Right, Right, Right, Right, Left];
    align.extend(names.iter().map(|_| Right));
    align.push(Left);
    columns(out, 2, &align, &rows);
}

/// Returns whole epochs, and the steps of the current epoch.
pub(super) fn epochs(manifest: &Manifest) -> String {
    match manifest.step_in_epoch {
        0 => manifest.epoch.to_string(),
        steps => format!("{} + {}", manifest.epoch, counted(steps as usize, "step")),
    }
}

fn marks(entry: &Entry) -> Vec<&'static str> {
    let is_unreadable = !entry.is_whole() && !entry.is_newer() && !entry.is_damaged();
    let marks = [
        (entry.latest, "latest"),
        (entry.best, "best"),
        (entry.is_newer(), "newer-format"),
        (entry.is_damaged(), "damaged"),
        (is_unreadable, "unreadable"),
    ];
    marks.into_iter().filter_map(|(is_so, mark)| is_so.then_some(mark)).collect()
}

fn object(run_dir: &RunDir, entries: &[Listed], leftovers: &[Leftover], set_aside: &[SetAside]) -> Value {
    let entry = |(figures, entry): &Listed| {
        let manifest = entry.manifest.as_ref();
        json!({
            "step": entry.step,
            "path": entry.folder,
            "bytes": entry.bytes,
            "written": time_value(entry.written),
            "epoch": manifest.map(|manifest| manifest.epoch),
            "step_in_epoch": manifest.map(|manifest| manifest.step_in_epoch),
            "samples": manifest.map(|manifest| manifest.samples),
            // JSON has no NaN: it becomes null.
            "metrics": figures,
            "latest": entry.latest,
            "best": entry.best,
            "whole": entry.is_whole(),
            "problem": entry.problem.as_ref().map(|problem| {
                json!({"kind": kind(problem), "message": sentence(problem)})
            }),
        })
    };
    let leftover = |leftover: &Leftover| json!({"path": leftover.path, "bytes": leftover.bytes, "age_s": leftover.age.as_secs()});
    let aside = |set_aside: &SetAside| {
        json!({
            "path": set_aside.folder,
            "bytes": inventory::size(&set_aside.folder),
            "steps": set_aside.steps,
            "under_way": set_aside.is_interrupted(),
            "from": set_aside.rollback.as_ref().map(|rollback| rollback.from),
            "to": set_aside.rollback.as_ref().map(|rollback| rollback.to),
        })
    };
    json!({
        "path": run_dir.checkpoints(),
        "checkpoints": entries.iter().map(entry).collect::<Vec<_>>(),
        "set_aside": set_aside.iter().map(aside).collect::<Vec<_>>(),
        "leftovers": leftovers.iter().map(leftover).collect::<Vec<_>>(),
    })
}
