//! Reads a run's files: checkpoints, which must always be intact, steps, and the final weights.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use dtrain_common::manifest::Manifest;
use dtrain_common::run_dir::RunDir;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// The tensor files of a checkpoint, the weights first.
pub(super) const FILES: [&str; 3] =
    ["model.safetensors", "optimizer-00000-of-00001.safetensors", "ema.safetensors"];

/// Verifies every byte of every checkpoint; returns the number of intact ones and descriptions of the damaged
/// ones. The run may continue meanwhile: removed checkpoints do not count.
pub(super) fn verify(run: &RunDir) -> Result<(usize, Vec<String>)> {
    let (mut intact, mut damaged) = (0, Vec::new());
    for step in run.steps().context("cannot list the checkpoints")? {
        let folder = run.checkpoint(step);
        match Manifest::read(&folder).and_then(|manifest| manifest.verify(&folder)) {
            Ok(()) => intact += 1,
            Err(_) if !folder.exists() => {}
            Err(error) => damaged.push(format!("step {step}: {error}")),
        }
    }
    Ok((intact, damaged))
}

/// Returns the highest step of the checkpoints that are being written (folders `.partial-STEP`).
pub(super) fn step_being_written(run: &RunDir) -> Option<u64> {
    let entries = fs::read_dir(run.checkpoints()).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix(".partial-")?.parse().ok()).max()
}

/// Returns the folders of rollbacks, with one in progress.
fn rollback_folders(run: &RunDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(run.checkpoints()).into_iter().flatten().flatten();
    let is_rollback = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.trim_start_matches('.').starts_with("rollback-")
    };
    entries.map(|entry| entry.path()).filter(is_rollback).collect()
}

/// Returns the number of rollbacks, and whether one is in progress.
pub(super) fn rollbacks(run: &RunDir) -> (usize, bool) {
    let all = rollback_folders(run);
    let in_progress =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    (all.len(), all.iter().any(in_progress))
}

/// Checks that the checkpoints of these steps are intact, in their usual folders or in a rollback's.
pub(super) fn check_none_lost(run: &RunDir, steps: &[u64]) -> Result<()> {
    let folders = rollback_folders(run);
    for step in steps {
        let own = run.checkpoint(*step);
        let name = own.file_name().context("a checkpoint has a name")?;
        let candidates = folders.iter().map(|folder| folder.join(name)).chain([own.clone()]);
        let is_intact =
            |folder: PathBuf| Manifest::read(&folder).and_then(|manifest| manifest.verify(&folder)).is_ok();
        ensure!(candidates.into_iter().any(is_intact), "the checkpoint of step {step} is lost");
    }
    Ok(())
}

/// Returns the last step in metrics.jsonl; 0 before the first.
pub(super) fn last_step(run: &RunDir) -> u64 {
    let text = fs::read_to_string(run.metrics()).unwrap_or_default();
    let step = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        line.get("loss").and_then(|_| line["step"].as_u64())
    };
    text.lines().rev().find_map(step).unwrap_or(0)
}

/// Checks that the run ended with an intact checkpoint of its last step.
pub(super) fn check_final_state(run: &RunDir, step: u64) -> Result<()> {
    let latest = fs::read_link(run.latest()).context("no latest checkpoint")?;
    let folder = run.checkpoint(step);
    ensure!(
        Some(latest.as_os_str()) == folder.file_name(),
        "the latest checkpoint is {}, expected that of step {step}",
        latest.display()
    );
    let entries = fs::read_dir(run.checkpoints()).context("cannot list the checkpoints")?;
    for entry in entries {
        let name = entry.context("cannot list the checkpoints")?.file_name();
        ensure!(
            !name.as_encoded_bytes().starts_with(b"."),
            "{} remains among the checkpoints",
            name.display()
        );
    }
    ensure!(last_step(run) == step, "the last step in metrics.jsonl is {}", last_step(run));
    Ok(())
}

/// Compares the newest checkpoints of two runs by bytes; returns the first file that differs.
pub(super) fn first_differing_file(one: &RunDir, other: &RunDir) -> Result<Option<&'static str>> {
    for file in FILES {
        if read(&one.latest(), file)? != read(&other.latest(), file)? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Returns the largest difference of a value of this file between the newest checkpoints of two runs.
pub(super) fn difference(one: &RunDir, other: &RunDir, file: &str) -> Result<f64> {
    largest_difference(&read(&one.latest(), file)?, &read(&other.latest(), file)?)
        .with_context(|| file.to_owned())
}

fn read(folder: &Path, file: &str) -> Result<Vec<u8>> {
    let path = folder.join(file);
    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn largest_difference(one: &[u8], other: &[u8]) -> Result<f64> {
    let (one, other) = (SafeTensors::deserialize(one)?, SafeTensors::deserialize(other)?);
    ensure!(one.len() == other.len(), "the numbers of tensors differ");
    let mut largest = 0f64;
    for name in one.names() {
        let (a, b) = (one.tensor(name)?, other.tensor(name).with_context(|| name.to_owned())?);
        ensure!(a.dtype() == b.dtype() && a.shape() == b.shape(), "{name} differs in type or shape");
        match a.dtype() {
            Dtype::F32 => {
                let values = |bytes: &[u8]| -> Vec<f32> {
                    let (fours, _) = bytes.as_chunks();
                    fours.iter().map(|four| f32::from_le_bytes(*four)).collect()
                };
                for (a, b) in values(a.data()).into_iter().zip(values(b.data())) {
                    let difference = f64::from(a) - f64::from(b);
                    // NaN counts as an infinite difference.
                    largest = largest.max(if difference.is_nan() { f64::INFINITY } else { difference.abs() });
                }
            }
            _ if a.data() == b.data() => {}
            dtype => bail!("{name}, of {dtype:?}, differs"),
        }
    }
    Ok(largest)
}
