//! Computes the figures of one run from its files.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::case::{Network, Steps};
use crate::files::RunFiles;
use crate::stats::median;
use xtask::metrics;

/// A measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Metric {
    /// Images or tokens per second, of all processes together.
    Rate,
    /// Images per processor second of all loading threads and processes: other programs do not matter.
    CpuRate,
    /// Median duration of a step.
    StepMs,
    /// Median time that rank 0 waits for the other ranks in a step.
    WaitMs,
    /// Median over the steps of this wait's share of the step.
    WaitShare,
    /// Peak resident memory of rank 0 after its last training step; of independent processes, the larger.
    TrainingPeakBytes,
    /// Peak resident memory of any rank in the whole run; dtrain also evaluates and writes a checkpoint.
    RunPeakBytes,
    /// [`Metric::TrainingPeakBytes`] without the GPU library files that PyTorch's usual wheel always loads.
    OwnPeakBytes,
    /// Parameters of the network: both sides must agree.
    Parameters,
    /// Mean of some values of the loaded images: both sides must agree.
    PixelMean,
    /// From the start of a launcher to its end; the median of the launches.
    WallMs,
    /// Peak resident memory of the launcher, or of a worker if that is larger.
    LauncherPeakBytes,
    /// From a worker's death to the SIGTERM of the last other worker; the median of the deaths.
    DeathMs,
    /// The same, as 99th percentile.
    DeathP99Ms,
    /// From a worker's death to the new start of the last worker; the median of the deaths.
    RestartMs,
    /// From the start of the first of several agents to that of the last worker.
    StartedMs,
    /// From an agent's death to the SIGTERM of the last worker of the other one.
    NoticedMs,
    /// Lines missing from standard output plus lines missing from all log files.
    LinesLost,
    /// Median time that the training waits for a checkpoint, without the first one.
    BlockedMs,
    /// The same of the first checkpoint, which touches new memory.
    FirstBlockedMs,
    /// Bytes written and synced per second, during a training if it continues.
    WriteRate,
    /// The same of the last checkpoint, which no step follows.
    LastWriteRate,
    /// Median time from the beginning of a checkpoint to its end.
    TotalMs,
    /// Median duration of the steps without a write.
    AloneStepMs,
    /// Median duration of the steps during a write.
    BesideStepMs,
    /// [`Metric::BesideStepMs`] divided by [`Metric::AloneStepMs`].
    Slowdown,
    /// Time to load model and optimizer. dtrain's is the delay of its first step, and includes verification.
    LoadMs,
    /// From the command to the first step of a new run.
    FreshStartMs,
    /// From the command to the first step of a resumed run.
    ResumedStartMs,
    /// From the worker's death to the beginning of the next step.
    DeathToStepMs,
    /// The same without [`Metric::LoadMs`].
    BeyondLoadMs,
}

/// The figures of one run.
pub(super) type Figures = BTreeMap<Metric, f64>;

/// One process, or two ranks that train together.
#[derive(Debug)]
struct ProcessFigures {
    step_ms: f64,
    /// Units (images, tokens) per step.
    counted: f64,
    peak_bytes: f64,
}

/// Reads the files of a dtrain run with `ranks` ranks.
pub(super) fn read_dtrain(files: &RunFiles, network: Network, ranks: u64, steps: Steps) -> Result<Figures> {
    let records = metrics::steps(&files.metrics).context("metrics.jsonl")?;
    let counted = counted_steps(&records, steps).context("metrics.jsonl")?;
    let batch = network.batch() * ranks;
    for pair in counted.windows(2) {
        let seen = number(&pair[1], &["samples"])? - number(&pair[0], &["samples"])?;
        ensure!(seen == batch as f64, "a step had {seen} samples, expected {batch}");
    }
    let all =
        |path: &[&str]| -> Result<Vec<f64>> { counted.iter().map(|record| number(record, path)).collect() };
    let (step_ms, wait_ms) = (all(&["step_ms"])?, all(&["wait_ms", "comm"])?);
    let shares: Vec<f64> = wait_ms.iter().zip(&step_ms).map(|(wait, step)| wait / step).collect();
    let last = counted.last().context("no step")?;
    let result: Value = serde_json::from_str(&files.result).context("result.json")?;
    let peaks = result["peak_memory_bytes"].as_array().context("result.json has no peak memory")?;
    let highest = peaks.iter().filter_map(Value::as_f64).fold(0.0, f64::max);
    let plan: Value = serde_json::from_str(&files.plan).context("plan.json")?;
    let mut figures = combine(&[ProcessFigures {
        step_ms: middle(&step_ms)?,
        counted: (batch * network.per_sample()) as f64,
        peak_bytes: number(last, &["memory", "peak"])?,
    }]);
    figures.insert(Metric::WaitMs, middle(&wait_ms)?);
    figures.insert(Metric::WaitShare, middle(&shares)?);
    figures.insert(Metric::RunPeakBytes, highest);
    // dtrain loads the CUDA libraries only to use a GPU; here it uses none.
    figures.insert(Metric::OwnPeakBytes, number(last, &["memory", "peak"])?);
    figures.insert(Metric::Parameters, number(&plan, &["parameters"])?);
    Ok(figures)
}

/// Combines two independent runs of dtrain, each with its figures.
pub(super) fn combine_pair(each: &[Figures]) -> Result<Figures> {
    let all = |metric: Metric| -> Result<Vec<f64>> {
        let values = each.iter().map(|figures| figures.get(&metric).copied());
        values.collect::<Option<_>>().with_context(|| format!("a process has no {metric:?}"))
    };
    let greatest = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
    Ok([
        (Metric::Rate, all(Metric::Rate)?.iter().sum()),
        (Metric::StepMs, middle(&all(Metric::StepMs)?)?),
        (Metric::TrainingPeakBytes, greatest(all(Metric::TrainingPeakBytes)?)),
        (Metric::RunPeakBytes, greatest(all(Metric::RunPeakBytes)?)),
        (Metric::Parameters, greatest(all(Metric::Parameters)?)),
    ]
    .into())
}

/// Reads the output of `train.py` on each rank; with `together`, they are ranks of one training.
pub(super) fn read_torch(files: &[String], together: bool, steps: Steps) -> Result<Figures> {
    let ranks: Vec<Value> = files.iter().map(|text| serde_json::from_str(text)).collect::<Result<_, _>>()?;
    let trained: Vec<ProcessFigures> = ranks
        .iter()
        .map(|rank| {
            let all = rank["step_ms"].as_array().context("a rank has no steps")?;
            let times: Vec<f64> = counted_steps(all, steps)?.iter().filter_map(Value::as_f64).collect();
            Ok(ProcessFigures {
                step_ms: middle(&times)?,
                counted: number(rank, &["samples"])? * number(rank, &["per_sample"])?,
                peak_bytes: number(rank, &["peak_bytes"])?,
            })
        })
        .collect::<Result<_>>()?;
    let highest = trained.iter().map(|rank| rank.peak_bytes).fold(0.0, f64::max);
    let first = trained.first().zip(ranks.first()).context("no rank")?;
    let mut figures = if together {
        // Rank 0 only, as in dtrain, whose rank 0 writes the metrics.
        combine(&[ProcessFigures { counted: trained.iter().map(|rank| rank.counted).sum(), ..*first.0 }])
    } else {
        combine(&trained)
    };
    figures.insert(Metric::RunPeakBytes, highest);
    if together {
        let own = first.0.peak_bytes - number(first.1, &["gpu_library_bytes"])?;
        figures.insert(Metric::OwnPeakBytes, own);
    }
    figures.insert(Metric::Parameters, number(first.1, &["parameters"])?);
    Ok(figures)
}

/// Reads the output of a loader.
pub(super) fn read_loader(text: &str) -> Result<Figures> {
    let value: Value = serde_json::from_str(text)?;
    let read = |key| number(&value, &[key]);
    let (images, seconds, cpu) = (read("images")?, read("seconds")?, read("cpu_seconds")?);
    ensure!(
        images > 0.0 && seconds > 0.0 && cpu > 0.0,
        "invalid loader output: {images} images in {seconds} s, {cpu} s of processor time"
    );
    let mean = number(&value, &["mean"])?;
    Ok([(Metric::Rate, images / seconds), (Metric::CpuRate, images / cpu), (Metric::PixelMean, mean)].into())
}

/// Combines independent processes.
fn combine(processes: &[ProcessFigures]) -> Figures {
    let rate = processes.iter().map(|process| 1e3 * process.counted / process.step_ms).sum();
    let times: Vec<f64> = processes.iter().map(|process| process.step_ms).collect();
    let peak = processes.iter().map(|process| process.peak_bytes).fold(0.0, f64::max);
    let mut figures: Figures = [(Metric::Rate, rate), (Metric::TrainingPeakBytes, peak)].into();
    figures.extend(median(&times).map(|time| (Metric::StepMs, time)));
    figures
}

fn middle(values: &[f64]) -> Result<f64> {
    median(values).context("no steps to take a median of")
}

fn counted_steps<T>(all: &[T], steps: Steps) -> Result<&[T]> {
    ensure!(all.len() == steps.all(), "{} steps, expected {}", all.len(), steps.all());
    Ok(&all[steps.skipped..])
}

/// Returns a number within nested objects.
pub(crate) fn number(value: &Value, path: &[&str]) -> Result<f64> {
    let found = path.iter().fold(value, |value, key| &value[*key]);
    found.as_f64().with_context(|| format!("{} is not a number", path.join(".")))
}

#[cfg(test)]
mod tests;
