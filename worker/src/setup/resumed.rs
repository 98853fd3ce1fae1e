//! Differences of a resumed run from the run of its checkpoint: a line each, with both values.

use std::path::Path;

use dtrain_common::manifest::{DataFingerprint, Manifest};
use dtrain_recipe::{General, Recipe};

use crate::checkpoint::MODEL_FILE;
use crate::course::RunPlan;
use crate::setup::error::Result;
use crate::setup::fingerprint::{self, check_same_changes, check_same_data, unnamed_classes};
use crate::tasks::Task;

/// Characters of a hash that are shown.
const SHOWN: usize = 12;

/// Checks that a checkpoint matches the task and its data. Returns lines about differences.
pub(crate) fn check_data(
    folder: &Path,
    manifest: &Manifest,
    task: &dyn Task,
    data: &DataFingerprint,
    plan: &RunPlan,
) -> Result<Vec<String>> {
    check_same_data(folder, manifest, task)?;
    check_same_changes(folder, manifest, task)?;
    let mut notes = Vec::from_iter(fingerprint::describe_change(manifest.data.as_ref(), data));
    let is_resized = plan.is_resized(manifest.step);
    notes.extend(is_resized.then(|| plan.describe_rest(manifest.step)));
    notes.extend(unnamed_classes(folder, manifest, task).map(|text| format!("warning: {text}")));
    Ok(notes)
}

/// Returns a warning if `model.file` now is another program than the checkpoint's, of which `now` is the hash.
pub(crate) fn describe_program(then: Option<&str>, now: Option<&str>) -> Option<String> {
    let (then, now) = then.zip(now).filter(|(then, now)| then != now)?;
    let shown = |hash: &str| hash.chars().take(SHOWN).collect::<String>();
    Some(format!(
        "warning: model.file is another program than the checkpoint's: BLAKE3 {} then, {} now. The run continues with the new one",
        shown(then),
        shown(now)
    ))
}

/// Describes other learning rates than those of the checkpoint's run, whose `before` is. Experiments are the same, so another
/// length is the reason.
pub(crate) fn describe_rates(
    recipe: &Recipe,
    folder: &Path,
    manifest: &Manifest,
    before: &RunPlan,
    now: &RunPlan,
) -> Option<String> {
    let done = manifest.step;
    let was_over = done >= before.total_steps;
    if done >= now.total_steps {
        return None;
    }
    let reason = lengths(&manifest.recipe, recipe).join(", ");
    // Of a finished run, the rate of its last step.
    let (last, next) = (before.lr(done.saturating_sub(u64::from(was_over))), now.lr(done));
    let differs = |one: f64, other: f64| (one - other).abs() > 1e-9 * one.abs().max(other.abs());
    if !differs(last, next) {
        return None;
    }
    let end = now.lr(now.total_steps - 1);
    Some(match was_over {
        false => format!(
            "warning: the learning rate of step {} is {last:.4e} by the checkpoint's recipe and {next:.4e} now: {reason}",
            done + 1
        ),
        true => format!(
            "warning: the checkpoint's schedule was over, with a learning rate of {last:.4e}; that of the longer run continues with \
             {next:.4e} at step {} and ends with {end:.4e} at step {}: {reason}. For a schedule of its own, start a new run with \
             model.weights = \"{}\"",
            done + 1,
            now.total_steps,
            folder.join(MODEL_FILE).display()
        ),
    })
}

/// Describes the lengths that differ.
fn lengths(then: &General, now: &General) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |key: &str, then: Option<u64>, now: Option<u64>| {
        let shown =
            |value: Option<u64>| value.map_or_else(|| "not set".to_owned(), |value| value.to_string());
        if then != now {
            found.push(format!("{key} is {} there and {} here", shown(then), shown(now)));
        }
    };
    compare("train.epochs", then.train.epochs, now.train.epochs);
    compare("train.steps", then.train.steps, now.train.steps);
    for (number, (then, now)) in std::iter::zip(&then.stage, &now.stage).enumerate() {
        compare(&format!("stage[{number}].epochs"), then.epochs, now.epochs);
        compare(&format!("stage[{number}].steps"), then.steps, now.steps);
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn another_program_is_named_with_both_hashes() {
        let (then, now) = ("0123456789abcdef", "fedcba9876543210");
        let warning = describe_program(Some(then), Some(now)).unwrap();
        assert!(warning.contains("BLAKE3 0123456789ab then, fedcba987654 now"), "{warning}");
        assert_eq!(describe_program(Some(then), Some(then)), None);
        // A network of dtrain, or a checkpoint of an earlier version.
        assert_eq!(describe_program(None, Some(now)), None);
        assert_eq!(describe_program(Some(then), None), None);
    }
}
