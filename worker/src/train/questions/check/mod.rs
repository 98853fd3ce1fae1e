//! The end of `dtrain import`: the engine's own steps on a file, beside results of PyTorch.

mod case;
mod compare;

use std::fs;
use std::path::{Path, PathBuf};

use dtrain_common::exit::ExitStatus;
use dtrain_common::question::{CaseAnswer, CheckAnswer, CheckQuestion};
use serde::Deserialize;

use super::print_answer;
use crate::setup::error::{Result, WorkerError};

/// The file that describes a check.
const CHECK: &str = "check.json";

/// A check: a program, inputs, and cases with PyTorch's results. Paths are relative to its folder.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    file: PathBuf,
    #[serde(default)]
    libraries: Vec<PathBuf>,
    inputs: PathBuf,
    /// Values of parameters that the check changes, by name: those of the file are so small that they hide others.
    values: Option<PathBuf>,
    /// The largest difference of a tensor, relative to its norm.
    tolerance: f64,
    cases: Vec<Case>,
}

/// Steps of a training, or batches of an evaluation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// Keys of the recipe, as for `--set`.
    #[serde(default)]
    set: Vec<String>,
    /// The micro-batches of each step. Every step takes the same samples.
    #[serde(default)]
    steps: Vec<Vec<usize>>,
    /// The batches of an evaluation.
    #[serde(default)]
    evaluate: Vec<usize>,
    #[serde(default)]
    lr: f64,
    tolerance: Option<f64>,
    /// Other inputs than those of the check.
    inputs: Option<PathBuf>,
    /// A safetensors file: `STEP.output.NAME`, `STEP.grad.NAME`, `STEP.buffer.NAME`.
    expected: PathBuf,
}

/// Answers the question. Differences are part of the answer: the exit status is 0.
pub(crate) fn run(question: &CheckQuestion) -> Result<ExitStatus> {
    // As the reference, whose sums depend on the number of threads.
    tch::set_num_threads(1);
    for folder in &question.folders {
        let mut answer = CheckAnswer { folder: folder.clone(), ..CheckAnswer::default() };
        match read(folder) {
            Ok(check) => {
                answer.cases = check.cases.iter().map(|case| answer_of(folder, &check, case)).collect()
            }
            Err(error) => answer.error = Some(error.to_string()),
        }
        print_answer(&(serde_json::to_string(&answer)? + "\n"));
    }
    Ok(ExitStatus::Success)
}

fn read(folder: &Path) -> Result<Check> {
    let path = folder.join(CHECK);
    let unreadable = |reason: String| WorkerError::Check { path: path.clone(), reason };
    let bytes = fs::read(&path).map_err(|error| unreadable(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))
}

fn answer_of(folder: &Path, check: &Check, case: &Case) -> CaseAnswer {
    let name = case.name.clone();
    match compare(folder, check, case) {
        Ok(answer) => CaseAnswer { name, ..answer },
        Err(error) => CaseAnswer { name, error: Some(error.to_string()), ..CaseAnswer::default() },
    }
}

fn compare(folder: &Path, check: &Check, case: &Case) -> Result<CaseAnswer> {
    let mut expected = compare::Expected::open(&folder.join(&case.expected))?;
    let tolerance = case.tolerance.unwrap_or(check.tolerance);
    let ran = case::run(folder, check, case, |step, found| expected.compare(step, &found))?;
    let case::Ran { recomputed, by_micro_batch } = ran;
    Ok(CaseAnswer { recomputed, by_micro_batch, ..expected.answer(tolerance) })
}
