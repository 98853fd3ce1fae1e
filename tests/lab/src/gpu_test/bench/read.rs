//! Reads the measurements of one run from its files.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Case;
use crate::bench::number;
use crate::files::RunFiles;
use xtask::metrics::steps;

/// The measurements of one run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measured {
    /// Images or tokens per second, of all counted steps together.
    pub(super) rate: f64,
    /// Peak bytes of tensors in the counted steps.
    pub(super) peak_allocated: f64,
    /// Peak bytes that libtorch's allocator reserved in the counted steps.
    pub(super) peak_reserved: f64,
    /// Trained parameters: both sides must agree.
    pub(super) parameters: f64,
    /// Mean wait for the loader per counted step; dtrain only.
    pub(super) wait_data_ms: Option<f64>,
    /// The GPU's name; PyTorch only.
    pub(super) gpu: Option<String>,
}

/// Reads the files of a dtrain run.
///
/// # Errors
/// If a step is missing, was skipped, has another number of samples or was split: PyTorch's steps never are.
pub(super) fn read_dtrain(files: &RunFiles, case: &Case) -> Result<Measured> {
    let records = steps(&files.metrics).context("metrics.jsonl")?;
    let all = case.steps.all();
    ensure!(records.len() == all, "metrics.jsonl has {} steps, expected {all}", records.len());
    for (done, record) in (1..).zip(&records) {
        ensure!(record["skipped"] != true, "the update of step {done} was skipped");
        let samples = number(record, &["samples"])?;
        ensure!(
            samples == (done * case.batch) as f64,
            "{samples} samples after {done} steps of {}",
            case.batch
        );
    }
    let plan: Value = serde_json::from_str(&files.plan).context("plan.json")?;
    let micro_steps = number(&plan, &["grad_accum_steps"])?;
    ensure!(micro_steps == 1.0, "a step had {micro_steps} micro-steps, expected 1");

    // A step retried in smaller micro-batches does not measure that batch; a training that stopped using
    // graphs does not measure graphs.
    let result: Value = serde_json::from_str(&files.result).context("result.json")?;
    ensure!(result["oom_replays"].as_u64().unwrap_or_default() == 0, "a step ran out of memory");
    let replays = &result["graph_replays"];
    ensure!(
        replays.is_null() || replays.as_u64() >= Some(case.steps.counted as u64),
        "{replays} micro-steps were replayed as graphs, expected {}",
        case.steps.counted
    );

    let counted = &records[case.steps.skipped..];
    let all =
        |path: &[&str]| -> Result<Vec<f64>> { counted.iter().map(|record| number(record, path)).collect() };
    let most = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
    // From the end of the last skipped step to the last step's end, with pauses, as in PyTorch's loop.
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

/// Reads the output of gpu.py.
///
/// # Errors
/// If it belongs to another training.
pub(super) fn read_pytorch(text: &str, case: &Case) -> Result<Measured> {
    let value: Value = serde_json::from_str(text).context("gpu.py wrote no JSON")?;
    let read = |key| number(&value, &[key]);
    for (key, expected) in [
        ("batch", case.batch),
        ("per_sample", case.network.per_sample()),
        ("steps", case.steps.counted as u64),
    ] {
        let got = read(key)?;
        ensure!(got == expected as f64, "gpu.py had {key} = {got}, expected {expected}");
    }
    let gpu = value["gpu"].as_str().map(str::to_owned);
    ensure!(gpu.is_some(), "gpu.py did not compute on a GPU");
    Ok(Measured {
        rate: rate(case, read("total_ms")?)?,
        peak_allocated: read("peak_allocated_bytes")?,
        peak_reserved: read("peak_reserved_bytes")?,
        parameters: read("parameters")?,
        wait_data_ms: None,
        gpu,
    })
}

/// Returns the units per second if the counted steps took `total_ms` together.
fn rate(case: &Case, total_ms: f64) -> Result<f64> {
    ensure!(total_ms.is_finite() && total_ms > 0.0, "the steps took {total_ms} ms");
    let counted = case.steps.counted as u64 * case.batch * case.network.per_sample();
    Ok(1e3 * counted as f64 / total_ms)
}
