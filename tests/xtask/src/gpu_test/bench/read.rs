//! What one run measured, from the files that it wrote.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Case;
use crate::bench::number;
use crate::metrics::steps;

/// The files of a run of dtrain that are read, as text.
#[derive(Debug)]
pub(super) struct RunFiles {
    pub(super) metrics: String,
    pub(super) plan: String,
    pub(super) result: String,
}

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
    ensure!(
        records.len() == all,
        "metrics.jsonl holds {} steps and not {all}",
        records.len()
    );
    for (done, record) in (1..).zip(&records) {
        ensure!(
            record["skipped"] != true,
            "the update of step {done} was left out"
        );
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
    ensure!(
        result["oom_replays"].as_u64().unwrap_or_default() == 0,
        "a step ran out of memory"
    );
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
        ensure!(
            got == expected as f64,
            "gpu.py had {key} = {got} and not {expected}"
        );
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
    ensure!(
        total_ms.is_finite() && total_ms > 0.0,
        "the steps took {total_ms} ms"
    );
    let counted = case.steps.counted as u64 * case.batch * case.network.per_sample();
    Ok(1e3 * counted as f64 / total_ms)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::super::network::Network;
    use super::*;
    use crate::bench::Steps;

    /// Of two windows of 1024 tokens, one step before the two that are counted.
    const CASE: Case = Case {
        network: Network::Gpt2,
        batch: 2,
        steps: Steps {
            skipped: 1,
            counted: 2,
        },
        is_small: true,
    };

    fn step(done: u64, step_ms: f64, peak: u64) -> Value {
        let elapsed_s = [1.0, 1.25, 2.0][done as usize - 1];
        json!({
            "step": done, "samples": 2 * done, "loss": 7.0, "step_ms": step_ms,
            "elapsed_s": elapsed_s,
            "wait_ms": { "data": step_ms / 10.0, "comm": 0.0 },
            "memory": { "allocated": 5, "reserved": 2 * peak, "peak": peak },
        })
    }

    fn files(lines: &[Value], micro_steps: u64) -> RunFiles {
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        RunFiles {
            metrics: lines.join("\n"),
            plan: json!({ "grad_accum_steps": micro_steps, "parameters": 124 }).to_string(),
            result: "{}".to_owned(),
        }
    }

    fn lines() -> Vec<Value> {
        vec![
            json!({ "stage": { "step": 1 } }),
            step(1, 900.0, 99),
            step(2, 30.0, 20),
            step(3, 10.0, 25),
            json!({ "eval": { "step": 3, "loss": 7.0 } }),
            json!({ "checkpoint": { "step": 3 } }),
        ]
    }

    #[test]
    fn dtrains_rate_is_of_all_counted_steps_together() {
        let measured = of_dtrain(&files(&lines(), 1), &CASE).unwrap();
        assert_eq!(
            measured,
            Measured {
                // 4 windows in a second, with what is between steps.
                rate: 4096.0,
                peak_allocated: 25.0,
                peak_reserved: 50.0,
                parameters: 124.0,
                wait_data_ms: Some(2.0),
                gpu: None,
            }
        );
    }

    #[test]
    fn a_run_whose_graphs_were_refused_measures_no_graphs() {
        let of = |result: &str| {
            let files = RunFiles {
                result: result.to_owned(),
                ..files(&lines(), 1)
            };
            of_dtrain(&files, &CASE)
        };
        assert!(of(r#"{ "graph_replays": 2 }"#).is_ok());
        let error = of(r#"{ "graph_replays": 1 }"#).unwrap_err().to_string();
        assert!(error.contains("1 micro-steps were replayed"), "{error}");
    }

    #[test]
    fn a_run_that_did_something_else_is_no_measurement() {
        let said = |lines: &[Value], micro_steps| {
            format!("{:#}", of_dtrain(&files(lines, micro_steps), &CASE).unwrap_err())
        };
        assert!(said(&lines(), 2).contains("cut up into 2"));
        assert!(said(&lines()[..3], 1).contains("holds 2 steps and not 3"));
        let out_of_memory = RunFiles {
            result: r#"{ "oom_replays": 1 }"#.to_owned(),
            ..files(&lines(), 1)
        };
        let error = of_dtrain(&out_of_memory, &CASE).unwrap_err();
        assert!(error.to_string().contains("ran out of memory"), "{error}");
        let mut left_out = lines();
        left_out[2]["skipped"] = true.into();
        assert!(said(&left_out, 1).contains("step 2 was left out"));
        let mut short = lines();
        short[3]["samples"] = 5.into();
        assert!(said(&short, 1).contains("5 samples after 3 steps of 2"));
        let mut nameless = lines();
        nameless[3]["memory"] = Value::Null;
        assert!(said(&nameless, 1).contains("memory.peak is not a number"));
    }

    #[test]
    fn pytorchs_rate_is_of_the_same_things() {
        let written = json!({
            "model": "gpt2", "way": "ddp", "batch": 2, "per_sample": 1024, "steps": 2, "skipped": 1,
            "total_ms": 20.0, "per_second": 1.0, "peak_allocated_bytes": 30, "peak_reserved_bytes": 40,
            "loss": 10.8, "parameters": 124, "torch": "2.11.0", "gpu": "NVIDIA H200",
        });
        let measured = of_pytorch(&written.to_string(), &CASE).unwrap();
        assert_eq!(
            measured,
            Measured {
                rate: 204_800.0,
                peak_allocated: 30.0,
                peak_reserved: 40.0,
                parameters: 124.0,
                wait_data_ms: None,
                gpu: Some("NVIDIA H200".to_owned()),
            }
        );
        for (key, value) in [
            ("batch", json!(4)),
            ("steps", json!(3)),
            ("peak_allocated_bytes", Value::Null),
        ] {
            let mut other = written.clone();
            other[key] = value;
            let error = of_pytorch(&other.to_string(), &CASE).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
