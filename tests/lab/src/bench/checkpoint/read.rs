//! Computes figures from the files of the trainings.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::figures::{Figures, Metric};
use crate::stats::median;

/// First steps, not counted: they touch memory and choose kernels.
const SKIPPED: usize = 3;

/// A step: its duration, and whether a checkpoint was being written meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    ms: f64,
    beside: bool,
}

/// A checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Checkpoint {
    bytes: f64,
    blocked_ms: f64,
    write_ms: f64,
    total_ms: f64,
}

/// Reads metrics.jsonl. Its lines are in order of time: steps between the step of a checkpoint and the
/// checkpoint's line ran during its write.
pub(super) fn read_dtrain(metrics: &str) -> Result<Figures> {
    let (mut steps, mut checkpoints) = (Vec::new(), Vec::new());
    for line in metrics.lines() {
        let line: Value = serde_json::from_str(line).context("metrics.jsonl")?;
        if let Some(checkpoint) = line.get("checkpoint") {
            let after = number(checkpoint, "step")?;
            checkpoints.push(self::checkpoint(checkpoint)?);
            steps
                .iter_mut()
                .filter(|(step, _)| *step > after)
                .for_each(|(_, step): &mut (f64, Step)| step.beside = true);
        } else if line.get("loss").is_some() {
            let ms = number(&line, "step_ms")?;
            steps.push((number(&line, "step")?, Step { ms, beside: false }));
        }
    }
    let steps: Vec<Step> = steps.into_iter().map(|(_, step)| step).collect();
    figures(&steps, &checkpoints, true)
}

/// Reads the output of checkpoint.py. With `blocks`, no step runs during a write.
pub(super) fn read_torch(text: &str, blocks: bool) -> Result<Figures> {
    let value: Value = serde_json::from_str(text)?;
    let list = |key: &str| value[key].as_array().with_context(|| format!("no {key} in the output"));
    let step = |step: &Value| -> Result<Step> {
        Ok(Step { ms: number(step, "step_ms")?, beside: step["beside"] == true })
    };
    let steps: Vec<Step> = list("steps")?.iter().map(step).collect::<Result<_>>()?;
    let checkpoints: Vec<Checkpoint> = list("checkpoints")?.iter().map(checkpoint).collect::<Result<_>>()?;
    let mut figures = figures(&steps, &checkpoints, !blocks)?;
    figures.insert(Metric::LoadMs, number(&value, "load_ms")?);
    figures.insert(Metric::Parameters, number(&value, "parameters")?);
    Ok(figures)
}

fn checkpoint(value: &Value) -> Result<Checkpoint> {
    Ok(Checkpoint {
        bytes: number(value, "bytes")?,
        blocked_ms: number(value, "blocked_ms")?,
        write_ms: number(value, "write_ms")?,
        total_ms: number(value, "total_ms")?,
    })
}

fn number(value: &Value, key: &str) -> Result<f64> {
    value[key].as_f64().with_context(|| format!("no {key} in the output"))
}

/// Computes figures. The median wait excludes the first checkpoint; others exclude the last, without steps.
fn figures(steps: &[Step], checkpoints: &[Checkpoint], beside: bool) -> Result<Figures> {
    let [first, between @ .., last] = checkpoints else {
        anyhow::bail!("{} checkpoints, at least three needed", checkpoints.len());
    };
    ensure!(!between.is_empty(), "2 checkpoints, at least three needed");
    let middle = |of: &dyn Fn(&Checkpoint) -> f64, among: &[Checkpoint]| {
        median(&among.iter().map(of).collect::<Vec<_>>()).context("no checkpoints to take a median of")
    };
    let rate = |checkpoint: &Checkpoint| 1e3 * checkpoint.bytes / checkpoint.write_ms;
    let not_last = &checkpoints[..checkpoints.len() - 1];
    let mut figures = Figures::from([
        (Metric::FirstBlockedMs, first.blocked_ms),
        (Metric::BlockedMs, middle(&|one| one.blocked_ms, &checkpoints[1..])?),
        (Metric::WriteRate, middle(&rate, not_last)?),
        (Metric::LastWriteRate, rate(last)),
        (Metric::TotalMs, middle(&|one| one.total_ms, not_last)?),
    ]);
    let of = |wanted: bool| -> Vec<f64> {
        let counted = steps.iter().skip(SKIPPED).filter(|step| step.beside == wanted);
        counted.map(|step| step.ms).collect()
    };
    let alone = median(&of(false)).context("a checkpoint is written during every step")?;
    figures.insert(Metric::AloneStepMs, alone);
    if beside {
        let during = median(&of(true)).context("no step runs during a write")?;
        figures.insert(Metric::BesideStepMs, during);
        figures.insert(Metric::Slowdown, during / alone);
    }
    Ok(figures)
}
