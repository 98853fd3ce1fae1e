//! Reads the files of a run during it.

use dtrain_common::manifest::Manifest;
use dtrain_common::run_dir::RunDir;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The characters of a text, in the data of a checkpoint's task.
const CHARACTERS: &str = "/vocabulary/chars";

/// A part of `plan.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PlanFile {
    pub(super) device: String,
    pub(super) nproc: usize,
    pub(super) total_steps: u64,
    pub(super) effective_batch: u64,
    pub(super) train_samples: u64,
    pub(super) test_samples: u64,
    pub(super) val_samples: Option<u64>,
    pub(super) budget_bytes: Option<u64>,
    predictions: Vec<Predicted>,
    stages: Vec<StageOfPlan>,
}

#[derive(Debug, Deserialize)]
struct Predicted {
    peak: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct StageOfPlan {
    pub(super) name: String,
    /// First and last, from 1.
    pub(super) steps: [u64; 2],
    pub(super) effective_batch: u64,
}

impl PlanFile {
    /// Returns the stages; of a run without stages one, without a name.
    pub(super) fn stages(&self) -> Vec<StageOfPlan> {
        match self.stages.is_empty() {
            true => {
                let effective_batch = self.effective_batch;
                vec![StageOfPlan { name: String::new(), steps: [1, self.total_steps], effective_batch }]
            }
            false => self.stages.clone(),
        }
    }

    /// Returns the largest predicted memory of a rank.
    pub(super) fn predicted(&self) -> Option<u64> {
        self.predictions.iter().map(|predicted| predicted.peak).max()
    }

    /// Returns the samples of the set that is evaluated during the training.
    pub(super) fn watched(&self) -> u64 {
        self.val_samples.unwrap_or(self.test_samples)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct StepLine {
    pub(super) step: u64,
    /// `None` if it was not finite.
    pub(super) loss: Option<f64>,
    pub(super) step_ms: f64,
    pub(super) memory: MemoryOfStep,
}

#[derive(Debug, Deserialize)]
pub(super) struct MemoryOfStep {
    pub(super) peak: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct EvalLine {
    #[serde(default)]
    pub(super) set: Option<String>,
    pub(super) samples: u64,
    pub(super) eval_ms: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct CheckpointLine {
    pub(super) bytes: u64,
    /// For how long the training waited.
    pub(super) blocked_ms: f64,
    pub(super) total_ms: f64,
}

/// The lines of `metrics.jsonl`.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) steps: Vec<StepLine>,
    pub(super) evaluations: Vec<EvalLine>,
    pub(super) checkpoints: Vec<CheckpointLine>,
    pub(super) tests: Vec<EvalLine>,
}

impl Lines {
    /// Reads whole lines; none if the file is not there yet.
    pub(super) fn read(run_dir: &RunDir) -> Self {
        let text = fs::read_to_string(run_dir.metrics()).unwrap_or_default();
        let mut lines = Self::default();
        for value in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let inner = |key: &str| value.get(key).cloned();
            if let Some(eval) = inner("eval") {
                lines.evaluations.extend(read(eval));
            } else if let Some(test) = inner("test") {
                lines.tests.extend(read(test));
            } else if let Some(checkpoint) = inner("checkpoint") {
                lines.checkpoints.extend(read(checkpoint));
            } else {
                lines.steps.extend(read(value));
            }
        }
        lines
    }
}

/// Returns `plan.json`; `None` before it is there.
pub(super) fn plan(run_dir: &RunDir) -> Option<PlanFile> {
    serde_json::from_slice(&fs::read(run_dir.plan()).ok()?).ok()
}

/// Returns a prompt that the model of a checkpoint knows: a text of characters may lack any letter.
pub(super) fn prompt(checkpoint: &Path) -> String {
    let extra = Manifest::read(checkpoint).map(|manifest| manifest.extra);
    extra.ok().and_then(|extra| known_character(&extra)).unwrap_or('e').into()
}

fn known_character(extra: &Value) -> Option<char> {
    extra.pointer(CHARACTERS)?.as_str()?.chars().find(|character| character.is_alphanumeric())
}

fn read<T: DeserializeOwned>(value: Value) -> Option<T> {
    serde_json::from_value(value).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_prompt_is_of_the_vocabulary() {
        let of = |extra| known_character(&extra);
        assert_eq!(of(serde_json::json!({"vocabulary": {"chars": "\n -жи"}})), Some('ж'));
        assert_eq!(of(serde_json::json!({"vocabulary": "bytes"})), None);
        assert_eq!(of(Value::Null), None);
    }

    #[test]
    fn lines_are_sorted_by_their_kind() {
        let folder = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(folder.path());
        assert!(Lines::read(&run_dir).steps.is_empty() && plan(&run_dir).is_none());
        let text = "{\"stage\": {\"step\": 1}}\n{\"step\": 1, \"loss\": null, \"step_ms\": 3.5, \"memory\": {\"peak\": 7}}\n\
                    {\"checkpoint\": {\"step\": 1, \"bytes\": 9, \"blocked_ms\": 0.5, \"total_ms\": 2.0}}\n\
                    {\"eval\": {\"step\": 1, \"set\": \"val\", \"samples\": 4, \"eval_ms\": 1.5}}\n{\"step\": 2, \"lo";
        fs::write(run_dir.metrics(), text).unwrap();
        let lines = Lines::read(&run_dir);
        assert_eq!((lines.steps.len(), lines.steps[0].memory.peak, lines.steps[0].loss), (1, 7, None));
        assert_eq!((lines.checkpoints[0].bytes, lines.evaluations[0].set.as_deref()), (9, Some("val")));
        fs::write(
            run_dir.plan(),
            "{\"total_steps\": 2, \"test_samples\": 5, \"predictions\": [{\"peak\": 3}, {\"peak\": 8}]}",
        )
        .unwrap();
        let plan = plan(&run_dir).unwrap();
        assert_eq!((plan.stages()[0].steps, plan.predicted(), plan.watched()), ([1, 2], Some(8), 5));
    }
}
