//! `result.json`: outcome and figures of the run. The worker writes the figures, the launcher the outcome.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{none_if_missing, write_atomic};
use crate::manifest::BestSoFar;
use crate::numbers;

/// The first worker that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    pub rank: usize,
    pub host: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The name of the signal that killed it, such as `SIGSEGV`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// The worker's own error message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// When the launcher saw it, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// Why a worker failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// A stable word such as `cuda-out-of-memory`. A reader must expect unknown words.
    pub kind: String,
    /// Its meaning and a remedy, in one sentence.
    pub text: String,
}

/// The end of a run with `train.overfit`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverfitResult {
    pub samples: usize,
    /// `passed`, `not-passed`, `still-falling`, `only-in-training` or `unknown`.
    pub verdict: String,
    /// The loss of the first step; these are none if they are not finite.
    pub first_loss: Option<f64>,
    /// The mean loss of the last tenth of the steps.
    pub train_loss: Option<f64>,
    /// The loss of the last evaluation, of the same samples.
    pub loss: Option<f64>,
}

/// The content of `result.json`. Unknown values are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    pub restarts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_s: Option<f64>,
    /// Workers on all nodes, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nproc: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<usize>,
    /// Committed optimizer steps, over all attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// The last evaluation and the last training loss, by name; NaN is written as `null`.
    #[serde(with = "numbers", skip_serializing_if = "BTreeMap::is_empty")]
    pub final_metrics: BTreeMap<String, f64>,
    /// The final test, if the recipe has one: its figures by name; NaN is written as `null`.
    #[serde(with = "numbers", skip_serializing_if = "BTreeMap::is_empty")]
    pub test: BTreeMap<String, f64>,
    /// Likewise for each set of `data.tests`, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tests: BTreeMap<String, Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<BestSoFar>,
    /// Training throughput of all workers together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_s: Option<f64>,
    /// From the launch command to the start of the first step, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub startup_ms: Option<f64>,
    /// Milliseconds of `startup_ms` in which rank 0 checked and read the checkpoint; none without a resume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_ms: Option<f64>,
    /// The checkpoint that `--resume` named, as given; none if it named none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<PathBuf>,
    /// Whether `train.stop_early` ended the run before its last step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stopped_early: bool,
    /// The verdict of `train.overfit`, at the end of its run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overfit: Option<OverfitResult>,
    /// Highest memory use in bytes, by rank.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peak_memory_bytes: Vec<u64>,
    /// Unreadable images that training left out; the check at the start has its own count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_images: Option<u64>,
    /// Steps that ran out of memory on some rank and were retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_replays: Option<u64>,
    /// Micro-steps of rank 0 that were replayed as CUDA graphs, if the recipe uses graphs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_replays: Option<u64>,
    /// The largest micro-batch at the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub micro_batch: Option<usize>,
}

/// Figures by name; NaN is written as `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(#[serde(with = "numbers")] pub BTreeMap<String, f64>);

impl RunResult {
    /// Reads `path`; `None` without such a file. A file that is not a result is `InvalidData`, with its path.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let Some(bytes) = none_if_missing(std::fs::read(path))? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is not a result file: {error}", path.display()),
            )
        })
    }

    /// Writes `path` whole or not at all.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        write_atomic(path, &self.to_json()?)
    }

    /// Returns the content of the file.
    pub fn to_json(&self) -> io::Result<Vec<u8>> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        Ok(json)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn full() -> RunResult {
        RunResult {
            exit_code: Some(4),
            reason: Some("a worker failed".into()),
            failure: Some(Failure {
                rank: 1,
                host: "node0".into(),
                exit_code: None,
                signal: Some("SIGKILL".into()),
                message: Some("no \"message\"\n".into()),
                cause: Some(Cause { kind: "killed".into(), text: "somebody's SIGKILL".into() }),
                at_ms: 1_763_676_000_123,
            }),
            restarts: 2,
            wall_s: Some(12.5),
            nproc: Some(2),
            nodes: Some(1),
            steps: Some(100),
            epochs: Some(1.5),
            samples: Some(12_800),
            final_metrics: [("accuracy".to_string(), 0.5), ("loss".to_string(), 1e-9)].into(),
            test: [("accuracy".to_string(), 0.25)].into(),
            tests: [("night".to_string(), Figures([("accuracy".to_string(), 0.125)].into()))].into(),
            best: Some(BestSoFar { by: "max accuracy".parse().unwrap(), value: 0.75, step: 60 }),
            samples_per_s: Some(1000.25),
            startup_ms: Some(812.0),
            resume_ms: Some(51.5),
            stopped_early: true,
            resumed_from: Some("runs/a/checkpoints/step-00000032".into()),
            overfit: Some(OverfitResult {
                samples: 8,
                verdict: "passed".into(),
                first_loss: Some(2.5),
                train_loss: None,
                loss: Some(0.25),
            }),
            peak_memory_bytes: vec![1 << 40, 7],
            skipped_images: Some(3),
            oom_replays: Some(1),
            graph_replays: Some(7),
            micro_batch: Some(8),
        }
    }

    #[test]
    fn round_trips_through_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.json");
        assert_eq!(RunResult::read(&path).unwrap(), None);
        for result in [RunResult::default(), full()] {
            result.write(&path).unwrap();
            assert_eq!(RunResult::read(&path).unwrap(), Some(result));
        }
    }

    #[test]
    fn unknown_values_are_left_out() {
        assert_eq!(serde_json::to_string(&RunResult::default()).unwrap(), r#"{"restarts":0}"#);
        assert_eq!(serde_json::from_str::<RunResult>("{}").unwrap(), RunResult::default());
    }

    #[test]
    fn a_failure_without_a_cause_and_one_of_an_unknown_kind_are_read() {
        let old = r#"{"failure": {"rank": 1, "host": "a", "exit_code": 3, "at_ms": 5}}"#;
        let failure = |json| serde_json::from_str::<RunResult>(json).unwrap().failure.unwrap();
        assert_eq!(failure(old).cause, None);
        assert!(!serde_json::to_string(&failure(old)).unwrap().contains("cause"));
        let newer = r#"{"failure": {"rank": 1, "cause": {"kind": "thought-of-later", "new": 1}}}"#;
        assert_eq!(failure(newer).cause.unwrap().kind, "thought-of-later");
    }

    #[test]
    fn a_loss_that_is_not_a_number_does_not_spoil_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.json");
        let mut result = full();
        result.final_metrics.insert("loss".into(), f64::INFINITY);
        result.samples_per_s = Some(f64::NAN);
        result.write(&path).unwrap();
        let read = RunResult::read(&path).unwrap().unwrap();
        assert!(read.final_metrics["loss"].is_nan());
        assert_eq!(read.samples_per_s, None);
        assert_eq!(read.final_metrics["accuracy"], 0.5);
    }

    #[test]
    fn a_file_that_is_not_a_result_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.json");
        std::fs::write(&path, "{\"restarts\": -1}").unwrap();
        let error = RunResult::read(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("result.json"), "{error}");
    }
}
