//! Figures of checkpoints, also of those that were written without an evaluation: by time, or because the run was stopped.

use super::inventory::Entry;
use dtrain_common::metrics::NO_FIGURES;
use dtrain_common::run_dir::RunDir;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};

/// The figures of a checkpoint, by name.
pub(super) type Figures = BTreeMap<String, f64>;

/// The name of the loss of the training step, as in result.json.
const TRAIN_LOSS: &str = "train_loss";

/// Returns the figures of each checkpoint: those of its manifest, and the training loss of its step. If the manifest has
/// none, those of an evaluation in metrics.jsonl.
pub(super) fn figures(run_dir: &RunDir, entries: &[Entry]) -> Vec<Figures> {
    let mut found: Vec<Figures> = entries.iter().map(|_| Figures::new()).collect();
    // Without the file, the manifests are enough.
    if let Ok(file) = File::open(run_dir.metrics()) {
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let place =
                step(&line).and_then(|step| entries.binary_search_by_key(&step, |entry| entry.step).ok());
            if let Some(place) = place {
                add(&line, &mut found[place]);
            }
            line.clear();
        }
    }
    for (entry, figures) in entries.iter().zip(&mut found) {
        let of_manifest = entry.manifest.iter().flat_map(|manifest| &manifest.metrics);
        figures.extend(of_manifest.map(|(name, value)| (name.clone(), *value)));
    }
    found
}

/// Returns the step of a line of a step or an evaluation, without parsing the line: a long run has a million.
fn step(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b"{\"eval\":").unwrap_or(line).strip_prefix(b"{\"step\":")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

fn add(line: &[u8], figures: &mut Figures) {
    let Ok(line) = serde_json::from_slice::<Value>(line) else { return };
    match line.get("eval").and_then(Value::as_object) {
        Some(eval) => {
            let numbers = eval.iter().filter(|(name, _)| !NO_FIGURES.contains(&name.as_str()));
            figures.extend(numbers.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))));
        }
        None => figures.extend(line["loss"].as_f64().map(|loss| (TRAIN_LOSS.to_owned(), loss))),
    }
}
