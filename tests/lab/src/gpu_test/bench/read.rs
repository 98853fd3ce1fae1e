//! What one run measured, from the files that it wrote.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Case;
use crate::bench::number;
use crate::place::RunFiles;
use xtask::metrics::steps;

/// One run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measured {
    /// Images or tokens per second, of all counted steps together.
    pub(super) rate: f64,
    /// The most that tensors took in a counted step.
    pub(super) peak_allocated: f64,
    /// The most that libtorch's allocator held in one.
    pub(super) peak_reserved: f64,
    /// Trained ones: both sides must have as many.
    pub(super) parameters: f64,
    /// What a counted step waited for the loader, in the mean; dtrain's alone.
    pub(super) wait_data_ms: Option<f64>,
    /// The GPU's name; PyTorch's alone.
    pub(super) gpu: Option<String>,
}

/// From the files of a run of dtrain.
///
/// # Errors
/// Where a step is missing, was left out, had another number of samples or was cut up, as no step of PyTorch's is.
pub(super) fn of_dtrain(files: &RunFiles, case: &Case) -> Result<Measured> {
    let records = steps(&files.metrics).context("metrics.jsonl")?;
    let all = case.steps.all();
    ensure!(records.len() == all, "metrics.jsonl holds {} steps and not {all}", records.len());
    for (done, record) in (1..).zip(&records) {
        ensure!(record["skipped"] != true, "the update of step {done} was left out");
        let samples = number(record, &["samples"])?;
        ensure!(
            samples == (done * case.batch) as f64,
            "there were {samples} samples after {done} steps of {}",
            case.batch
        );
    }
    let plan: Value = serde_json::from_str(&files.plan).context("plan.json")?;
    let micro_steps = number(&plan, &["grad_accum_steps"])?;
    ensure!(micro_steps == 1.0, "a step was cut up into {micro_steps}");

    // A step that is taken again in smaller parts is no measurement of that batch, and
    // a training that fell back to kernels one by one is no measurement of graphs.
    let result: Value = serde_json::from_str(&files.result).context("result.json")?;
    ensure!(result["oom_replays"].as_u64().unwrap_or_default() == 0, "a step ran out of memory");
    let replays = &result["graph_replays"];
    ensure!(
        replays.is_null() || replays.as_u64() >= Some(case.steps.counted as u64),
        "{replays} micro-steps were replayed as graphs and not {}",
        case.steps.counted
    );

    let counted = &records[case.steps.skipped..];
    let all =
        |path: &[&str]| -> Result<Vec<f64>> { counted.iter().map(|record| number(record, path)).collect() };
    let most = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
    // From the end of the last skipped step to that of the last one, with what is between steps, as PyTorch's loop is timed.
    let at = |done: usize| match done {
        0 => Ok(0.0),
        done => number(&records[done - 1], &["elapsed_s"]),
    };
    let total_ms = 1e3 * (at(records.len())? - at(case.steps.skipped)?);
    let waited_ms: f64 = all(&["wait_ms", "data"])?.iter().sum();
    Ok(Measured {
        rate: rate(case, total_ms)?,
        peak_allocated: most(all(&["memory", "peak"])?),
        peak_reserved: most(all(&["memory", "reserved"])?),
        parameters: number(&plan, &["parameters"])?,
        wait_data_ms: Some(waited_ms / counted.len() as f64),
        gpu: None,
    })
}

/// From what gpu.py wrote.
///
/// # Errors
/// Where it is of another training.
pub(super) fn of_pytorch(text: &str, case: &Case) -> Result<Measured> {
    let value: Value = serde_json::from_str(text).context("gpu.py wrote no JSON")?;
    let read = |key| number(&value, &[key]);
    for (key, expected) in [
        ("batch", case.batch),
        ("per_sample", case.network.per_sample()),
        ("steps", case.steps.counted as u64),
    ] {
        let got = read(key)?;
        ensure!(got == expected as f64, "gpu.py had {key} = {got} and not {expected}");
    }
    Ok(Measured {
        rate: rate(case, read("total_ms")?)?,
        peak_allocated: read("peak_allocated_bytes")?,
        peak_reserved: read("peak_reserved_bytes")?,
        parameters: read("parameters")?,
        wait_data_ms: None,
        gpu: value["gpu"].as_str().map(str::to_owned),
    })
}

/// Per second, where the counted steps together took so long.
fn rate(case: &Case, total_ms: f64) -> Result<f64> {
    ensure!(total_ms.is_finite() && total_ms > 0.0, "the steps took {total_ms} ms");
    let counted = case.steps.counted as u64 * case.batch * case.network.per_sample();
    Ok(1e3 * counted as f64 / total_ms)
}
