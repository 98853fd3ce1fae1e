//! `dtrain ckpt verify`: checks every byte of checkpoints.

use super::find::{Found, find};
use super::problem::{kind, sentence};
use super::tensors::{TensorFileError, open};
use crate::cli::VerifyArgs;
use crate::colour::{ERROR, GOOD, paint};
use crate::stdout::{print, print_coloured};
use anyhow::bail;
use dtrain_common::exit::ExitStatus;
use dtrain_common::manifest::{Manifest, ManifestError};
use dtrain_common::progress::{Progress, Unit};
use dtrain_common::text::{counted, size};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A problem of a checkpoint.
#[derive(Debug, Serialize)]
struct Problem {
    kind: &'static str,
    message: String,
}

#[derive(Debug)]
struct Report {
    folder: PathBuf,
    files: usize,
    bytes: u64,
    step: Option<u64>,
    problems: Vec<Problem>,
}

/// Checks all checkpoints, and prints each result at once. Damage is not an error, but gives exit code 1.
pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let folders = folders(&args.paths)?;
    let mut reports = Vec::new();
    for folder in folders {
        let report = check(folder);
        if !args.json && !print_coloured(&text(&report))? {
            break;
        }
        reports.push(report);
    }
    let damaged = reports.iter().filter(|report| !report.problems.is_empty()).count();
    let whole = reports.len() - damaged;
    if args.json {
        print(&format!("{}\n", object(&reports, damaged)))?;
    } else if reports.len() > 1 {
        let count = counted(reports.len(), "checkpoint");
        print(&format!("{count}: {whole} whole, {damaged} not\n"))?;
    }
    let status = if damaged == 0 { ExitStatus::Success } else { ExitStatus::Program(1) };
    Ok(status.into())
}

/// Returns the folders of the checkpoints, each once.
fn folders(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for path in paths {
        match find(path)? {
            Found::Checkpoint(folder) => folders.push(folder),
            Found::Run(run_dir) => {
                let steps = run_dir.steps()?;
                if steps.is_empty() {
                    bail!("there is no checkpoint in {}", run_dir.checkpoints().display());
                }
                folders.extend(steps.into_iter().map(|step| run_dir.checkpoint(step)));
            }
        }
    }
    let mut seen = HashSet::new();
    folders.retain(|folder| seen.insert(fs::canonicalize(folder).unwrap_or_else(|_| folder.clone())));
    Ok(folders)
}

fn check(folder: PathBuf) -> Report {
    let mut report = Report { folder, files: 0, bytes: 0, step: None, problems: Vec::new() };
    let folder = &report.folder;
    let manifest = match Manifest::read(folder) {
        Ok(manifest) => manifest,
        Err(error) => {
            report.problems.push(problem(&error));
            return report;
        }
    };
    report.step = Some(manifest.step);
    report.files = manifest.files.len();
    report.bytes = manifest.files.iter().map(|entry| entry.bytes).sum();
    let progress = Progress::of(format!("checking {}", folder.display()), report.bytes, Unit::Bytes);
    let errors = manifest.errors(folder, |_| true, |bytes| progress.add(bytes));
    drop(progress);
    report.problems.extend(errors.iter().map(problem));
    if report.problems.is_empty() {
        // If its bytes are damaged, a file is already listed: its header adds no information.
        report.problems = headers(folder, &manifest);
    }
    report
}

fn problem(error: &ManifestError) -> Problem {
    Problem { kind: kind(error), message: sentence(error) }
}

/// Returns the problems in the headers of the tensor files.
fn headers(folder: &Path, manifest: &Manifest) -> Vec<Problem> {
    let names = manifest.files.iter().map(|entry| &entry.name);
    let tensors = names.filter(|name| name.ends_with(".safetensors"));
    let wrong = tensors.filter_map(|name| {
        let message = match open(&folder.join(name)).err()? {
            TensorFileError::Header { reason, .. } => {
                format!("{name} is not a valid safetensors file: {reason}")
            }
            other => other.to_string(),
        };
        Some(Problem { kind: "header", message })
    });
    wrong.collect()
}

fn text(report: &Report) -> String {
    let (folder, problems) = (report.folder.display(), &report.problems);
    if problems.is_empty() {
        let count = counted(report.files, "file");
        return format!("{folder}: {} ({count}, {})\n", paint(GOOD, "whole"), size(report.bytes));
    }
    let is_newer = problems.iter().any(|problem| problem.kind == "newer-format");
    let state = if is_newer { "of a newer dtrain" } else { "damaged" };
    let state = paint(ERROR, state);
    let messages = problems.iter().map(|problem| format!("  {}\n", problem.message));
    format!("{folder}: {state}\n{}", messages.collect::<String>())
}

fn object(reports: &[Report], damaged: usize) -> Value {
    let report = |report: &Report| {
        json!({
            "path": report.folder,
            "step": report.step,
            "whole": report.problems.is_empty(),
            "files": report.files,
            "bytes": report.bytes,
            "problems": report.problems,
        })
    };
    json!({
        "checkpoints": reports.iter().map(report).collect::<Vec<_>>(),
        "whole": reports.len() - damaged,
        "damaged": damaged,
    })
}
