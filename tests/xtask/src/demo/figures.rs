//! Reads the results of a run from its files, and checks that it has learnt.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::metrics::steps;

/// The least test accuracy, as a multiple of chance.
const TIMES_CHANCE: f64 = 3.0;

/// The figures of one training run of a classifier.
#[derive(Debug)]
pub(super) struct Figures {
    /// Training loss of each optimizer step; NaN for a loss that is not finite.
    losses: Vec<f64>,
    /// Share of the test images with the right class.
    accuracy: f64,
    /// Number of classes; chance is 1 / `classes`.
    classes: u64,
}

impl Figures {
    /// Reads metrics.jsonl, result.json and the manifest of the latest checkpoint.
    pub(super) fn read(run_dir: &Path) -> Result<Self> {
        let read = |file: &str| {
            let path = run_dir.join(file);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let json = |file: &str| -> Result<Value> {
            serde_json::from_str(&read(file)?)
                .with_context(|| format!("{} is not JSON", run_dir.join(file).display()))
        };
        let result = json("result.json")?;
        let manifest = json("checkpoints/latest/manifest.json")?;
        Ok(Self {
            losses: losses(&read("metrics.jsonl")?).context("metrics.jsonl")?,
            accuracy: result["final_metrics"]["accuracy"]
                .as_f64()
                .context("result.json has no test accuracy")?,
            classes: manifest["classes"]
                .as_u64()
                .context("the checkpoint's manifest has no number of classes")?,
        })
    }

    /// Checks that the run has learnt: every loss is finite, the last losses are below the first, and the
    /// accuracy is far above chance.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(self.losses.len() >= 2, "too few training steps to compare losses: {}", self.losses.len());
        let bad = self.losses.iter().position(|loss| !loss.is_finite());
        ensure!(bad.is_none(), "the loss of step {} is not finite", bad.unwrap_or_default() + 1);
        // A single step's loss depends on its images: compares the first tenth of the steps with the last.
        let tenth = self.losses.len().div_ceil(10);
        let (start, end) = (mean(&self.losses[..tenth]), mean(&self.losses[self.losses.len() - tenth..]));
        ensure!(end < start, "the loss did not fall: {start:.3} in the first steps, {end:.3} in the last");
        ensure!(self.classes >= 2 && (0.0..=1.0).contains(&self.accuracy), "invalid results: {self}");
        ensure!(
            self.accuracy * self.classes as f64 >= TIMES_CHANCE,
            "the test accuracy {:.3} is less than {TIMES_CHANCE} times chance ({:.3})",
            self.accuracy,
            self.chance()
        );
        Ok(())
    }

    fn chance(&self) -> f64 {
        1.0 / self.classes as f64
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.losses.first().zip(self.losses.last());
        let (first, last) = ends.map_or((f64::NAN, f64::NAN), |(first, last)| (*first, *last));
        write!(
            f,
            "loss {first:.3} in the first step and {last:.3} in the last of {}, test accuracy {:.1}% (chance {:.1}%)",
            self.losses.len(),
            100.0 * self.accuracy,
            100.0 * self.chance()
        )
    }
}

/// Returns the losses of the steps.
fn losses(metrics: &str) -> Result<Vec<f64>> {
    let of = |step: Value| {
        let loss = step.get("loss").with_context(|| format!("step {} has no loss", step["step"]))?;
        Ok(loss.as_f64().unwrap_or(f64::NAN))
    };
    steps(metrics)?.into_iter().map(of).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_learning_fails_the_check() {
        let check = |losses: &[f64], accuracy| {
            let (losses, classes) = (losses.to_vec(), 10);
            let checked = Figures { losses, accuracy, classes }.check();
            checked.map_or_else(|error| error.to_string(), |()| "passed".to_owned())
        };
        assert_eq!(check(&[2.3, 1.0, 0.2], 0.3), "passed");
        assert!(check(&[2.3, 2.3], 0.95).contains("did not fall"));
        assert!(check(&[2.3, 0.2], 0.29).contains("3 times chance (0.100)"));
        assert!(check(&[2.3], 0.95).contains("too few"));
        assert!(check(&[2.3, f64::NAN, 0.2], 0.95).contains("step 2 is not finite"));
        assert!(check(&[2.3, 0.2], 95.0).contains("invalid results"));
        // One unusual step at the end does not decide.
        let mut losses: Vec<f64> = (0..40).map(|step| 2.3 - 0.05 * f64::from(step)).collect();
        losses[39] = 3.0;
        assert_eq!(check(&losses, 0.9), "passed");
    }
}
