//! Figures from what the trainings wrote.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::super::figures::{Figures, Metric};
use super::super::stats::median;

/// Steps at the beginning that are not counted: memory is first touched, and kernels are chosen.
const SKIPPED: usize = 3;

/// A step: how long it took, and whether a checkpoint was being written beside it.
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

/// From metrics.jsonl. Lines stand in the order in which things were there: between the step after which a checkpoint began
/// and the line of the checkpoint are those that were made beside it.
pub(super) fn of_dtrain(metrics: &str) -> Result<Figures> {
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

/// From what checkpoint.py wrote. With `blocks` nothing is done beside the training.
pub(super) fn of_torch(text: &str, blocks: bool) -> Result<Figures> {
    let value: Value = serde_json::from_str(text)?;
    let list = |key: &str| {
        value[key]
            .as_array()
            .with_context(|| format!("there are no {key}"))
    };
    let step = |step: &Value| -> Result<Step> {
        Ok(Step {
            ms: number(step, "step_ms")?,
            beside: step["beside"] == true,
        })
    };
    let steps: Vec<Step> = list("steps")?.iter().map(step).collect::<Result<_>>()?;
    let checkpoints: Vec<Checkpoint> = list("checkpoints")?
        .iter()
        .map(checkpoint)
        .collect::<Result<_>>()?;
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
    value[key].as_f64().with_context(|| format!("there is no {key}"))
}

/// The first checkpoint is told apart in what is waited for, and the last one, beside which no step is made, in all else.
fn figures(steps: &[Step], checkpoints: &[Checkpoint], beside: bool) -> Result<Figures> {
    let [first, between @ .., last] = checkpoints else {
        anyhow::bail!(
            "there are {} checkpoints and not three or more",
            checkpoints.len()
        );
    };
    ensure!(
        !between.is_empty(),
        "there are two checkpoints and not three or more"
    );
    let middle = |of: &dyn Fn(&Checkpoint) -> f64, among: &[Checkpoint]| {
        median(&among.iter().map(of).collect::<Vec<_>>()).context("a checkpoint has no such figure")
    };
    let rate = |checkpoint: &Checkpoint| 1e3 * checkpoint.bytes / checkpoint.write_ms;
    let not_last = &checkpoints[..checkpoints.len() - 1];
    let mut figures = Figures::from([
        (Metric::FirstBlockedMs, first.blocked_ms),
        (
            Metric::BlockedMs,
            middle(&|one| one.blocked_ms, &checkpoints[1..])?,
        ),
        (Metric::WriteRate, middle(&rate, not_last)?),
        (Metric::LastWriteRate, rate(last)),
        (Metric::TotalMs, middle(&|one| one.total_ms, not_last)?),
    ]);
    let of = |wanted: bool| -> Vec<f64> {
        let counted = steps.iter().skip(SKIPPED).filter(|step| step.beside == wanted);
        counted.map(|step| step.ms).collect()
    };
    let alone = median(&of(false)).context("beside every step a checkpoint is written")?;
    figures.insert(Metric::AloneStepMs, alone);
    if beside {
        let during = median(&of(true)).context("beside no step a checkpoint is written")?;
        figures.insert(Metric::BesideStepMs, during);
        figures.insert(Metric::Slowdown, during / alone);
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn metrics() -> String {
        let mut text = String::new();
        let mut write =
            |step: u64, ms: f64| text += &format!("{{\"step\":{step},\"loss\":1.0,\"step_ms\":{ms}}}\n");
        (1..=4).for_each(|step| write(step, 100.0));
        (5..=6).for_each(|step| write(step, 120.0));
        text += &checkpoint_line(4, 500.0, 1000.0);
        text += "{\"eval\":{\"step\":8,\"loss\":1.0}}\n";
        let mut write =
            |step: u64, ms: f64| text += &format!("{{\"step\":{step},\"loss\":1.0,\"step_ms\":{ms}}}\n");
        (7..=8).for_each(|step| write(step, 100.0));
        write(9, 130.0);
        text += &checkpoint_line(8, 50.0, 2000.0);
        text + &checkpoint_line(9, 70.0, 500.0)
    }

    fn checkpoint_line(step: u64, blocked: f64, wrote: f64) -> String {
        format!(
            "{{\"checkpoint\":{{\"step\":{step},\"bytes\":1000000,\"blocked_ms\":{blocked},\"write_ms\":{wrote},\"total_ms\":{}}}}}\n",
            wrote + blocked
        )
    }

    #[test]
    fn steps_beside_a_checkpoint_are_those_before_its_line() {
        let figures = of_dtrain(&metrics()).unwrap();
        let expected = [
            (Metric::FirstBlockedMs, 500.0),
            (Metric::BlockedMs, 60.0),
            (Metric::WriteRate, 0.75e6),
            (Metric::LastWriteRate, 2e6),
            (Metric::TotalMs, 1775.0),
            (Metric::AloneStepMs, 100.0),
            (Metric::BesideStepMs, 120.0),
            (Metric::Slowdown, 1.2),
        ];
        assert_eq!(figures, expected.into());
        assert!(of_dtrain("").unwrap_err().to_string().contains("0 checkpoints"));
    }

    #[test]
    fn one_that_blocks_has_no_steps_beside_it() {
        let one = r#"{"bytes": 10, "blocked_ms": 2, "write_ms": 2, "total_ms": 2}"#;
        let step = r#"{"step_ms": 5, "beside": false}"#;
        let text = format!(
            r#"{{"steps": [{}], "checkpoints": [{one}, {one}, {one}], "load_ms": 7, "parameters": 9}}"#,
            [step; 5].join(",")
        );
        let figures = of_torch(&text, true).unwrap();
        assert_eq!(
            (figures[&Metric::WriteRate], figures[&Metric::LoadMs]),
            (5000.0, 7.0)
        );
        assert!(!figures.contains_key(&Metric::Slowdown));
        assert!(of_torch(&text, false).is_err());
    }
}
