//! The learning-rate range test (Smith 2015, arXiv 1506.01186): losses at rising rates, and the rates that they suggest.

use dtrain_common::text::{Align::Left, Align::Right, columns, counted, paragraph};
use serde::{Deserialize, Serialize};

/// The part of the smoothed loss that stays in each step, as in fastai and Lightning.
const SMOOTHING: f64 = 0.98;
/// The loss has diverged when it is this many times the least one.
const DIVERGED: f64 = 4.0;
/// The first steps, as a part of all, and the number of the last ones that suggest nothing.
const SKIPPED: (usize, usize) = (10, 1);
/// A mean of both sides takes this part of the planned steps from each.
const NEAR: usize = 20;
/// Rows of the table, and characters of its longest bar.
const ROWS: usize = 16;
const BAR: f64 = 40.0;

/// The whole answer; `--json` prints it as one object on a line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LrRangeTest {
    pub(crate) model: String,
    pub(crate) device: String,
    pub(crate) ranks: usize,
    pub(crate) effective_batch: usize,
    /// Steps if the loss does not diverge.
    pub(crate) planned: u64,
    /// The setting `optim.lr` that has a rate of 1.
    pub(crate) lr_for_rate_1: f64,
    pub(crate) steps: Vec<RangeStep>,
    /// Whether the loss diverged, which ended the test.
    pub(crate) diverged: bool,
    /// The rate up to the largest stable one at which the smoothed loss falls fastest; None if it falls nowhere.
    pub(crate) steepest: Option<f64>,
    /// The rate of the least loss, as a mean of the steps around it; above it the loss rises.
    pub(crate) largest_stable: Option<f64>,
    /// The moving mean of the losses.
    #[serde(skip)]
    pub(crate) mean: f64,
    #[serde(skip)]
    pub(crate) least: f64,
}

/// A step of the test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct RangeStep {
    pub(crate) lr: f64,
    /// The loss before the update with this rate; null if it is not finite.
    pub(crate) loss: Option<f64>,
    pub(crate) smoothed: Option<f64>,
}

impl LrRangeTest {
    /// Adds a step, and returns whether the test continues.
    pub(crate) fn add(&mut self, lr: f64, loss: f64, is_skipped: bool) -> bool {
        let number = self.steps.len() as i32 + 1;
        self.mean = SMOOTHING * self.mean + (1.0 - SMOOTHING) * loss;
        let smoothed = self.mean / (1.0 - SMOOTHING.powi(number));
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        self.steps.push(RangeStep { lr, loss: finite(loss), smoothed: finite(smoothed) });
        if number == 1 || smoothed < self.least {
            self.least = smoothed;
        }
        // For a loss below 0 too.
        let is_far = smoothed - self.least > (DIVERGED - 1.0) * self.least.abs();
        self.diverged = is_skipped || !smoothed.is_finite() || is_far;
        !self.diverged
    }

    /// Finds the rates that the steps suggest.
    pub(crate) fn conclude(&mut self) {
        let planned = self.planned as usize;
        let first = (planned / SKIPPED.0).min(self.steps.len());
        let end = self.steps.len().saturating_sub(SKIPPED.1);
        // A mean of the past lags behind the rate, so that of both sides says where the loss is least.
        let near = (planned / NEAR).max(1);
        let around = |at: usize| {
            let there = &self.steps[at.saturating_sub(near)..(at + near + 1).min(self.steps.len())];
            let losses: Option<Vec<f64>> = there.iter().map(|step| step.loss).collect();
            losses.map(|losses| losses.iter().sum::<f64>() / losses.len() as f64)
        };
        let means = (first..end).filter_map(|at| Some((at, around(at)?)));
        let least = means.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(at, _)| at);
        let seen: Vec<(f64, f64)> = least
            .map_or(&[][..], |least| &self.steps[first..=least])
            .iter()
            .filter_map(|step| Some((step.lr, step.smoothed?)))
            .collect();
        let slope = |at: usize| {
            let (before, after) = (at.saturating_sub(1), (at + 1).min(seen.len() - 1));
            (seen[after].1 - seen[before].1) / (after - before).max(1) as f64
        };
        let slopes = (0..seen.len()).map(|at| (seen[at].0, slope(at)));
        let steepest = slopes.min_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, slope)| *slope < 0.0);
        self.steepest = steepest.map(|(lr, _)| lr);
        self.largest_stable = least.map(|at| self.steps[at].lr).filter(|_| self.steepest.is_some());
    }

    /// Returns the answer as text, or as a line of JSON.
    pub(crate) fn render(&self, json: bool) -> serde_json::Result<String> {
        if json {
            return serde_json::to_string(self).map(|line| line + "\n");
        }
        let mut out = String::new();
        let (first, last) =
            (self.steps.first().map_or(0.0, |step| step.lr), self.steps.last().map_or(0.0, |step| step.lr));
        let text = format!(
            "Learning-rate range test of {} on {} x {}: {} of {} samples, at rates from {} to {}. No weights are kept.",
            self.model,
            self.ranks,
            self.device,
            counted(self.steps.len(), "step"),
            self.effective_batch,
            rate(first),
            rate(last),
        );
        paragraph(&mut out, 2, &text);
        columns(&mut out, 2, &[Right, Right, Right, Left], &self.table());
        self.suggest(&mut out);
        Ok(out)
    }

    /// Returns rows of rates, losses, and bars as long as the smoothed loss.
    fn table(&self) -> Vec<Vec<String>> {
        let smoothed = || self.steps.iter().filter_map(|step| step.smoothed);
        let (least, most) =
            (smoothed().fold(f64::INFINITY, f64::min), smoothed().fold(f64::NEG_INFINITY, f64::max));
        let mut table = vec![["rate", "loss", "smoothed", ""].map(str::to_owned).to_vec()];
        let rows = ROWS.min(self.steps.len());
        for row in 0..rows {
            let at = if rows == 1 { 0 } else { row * (self.steps.len() - 1) / (rows - 1) };
            let RangeStep { lr, loss, smoothed } = self.steps[at];
            let number = |value: Option<f64>| {
                value.map_or_else(|| "not finite".to_owned(), |value| format!("{value:.4}"))
            };
            let part = smoothed.map_or(1.0, |value| (value - least) / (most - least).max(f64::MIN_POSITIVE));
            let bar = "#".repeat(1 + (part.clamp(0.0, 1.0) * BAR).round() as usize);
            table.push(vec![rate(lr), number(loss), number(smoothed), bar]);
        }
        table
    }

    fn suggest(&self, out: &mut String) {
        let (Some(steepest), Some(largest)) = (self.steepest, self.largest_stable) else {
            paragraph(
                out,
                2,
                "The smoothed loss falls at no rate of this range. Test a wider one, or more steps.",
            );
            return;
        };
        let set = rate(steepest * self.lr_for_rate_1);
        let scaled = if self.lr_for_rate_1 == 1.0 { "" } else { ", before the scaling of the recipe" };
        let text = format!("The loss falls fastest at {}: --set optim.lr={set}{scaled}", rate(steepest));
        paragraph(out, 2, &text);
        let end = match self.diverged {
            true => "above it the loss rises, and at the end it diverged",
            false => "above it the loss does not fall any more",
        };
        let end = format!("The largest stable rate is {}: {end}.", rate(largest));
        paragraph(out, 2, &end);
    }
}

/// Formats a rate as a recipe reads it.
fn rate(rate: f64) -> String {
    format!("{rate:.2e}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// A test of 100 steps from 1e-6 to 1 whose losses are `loss` of the rate.
    fn tested(loss: impl Fn(f64) -> f64) -> LrRangeTest {
        let mut test = LrRangeTest {
            model: "made-up".into(),
            device: "CPU".into(),
            ranks: 2,
            effective_batch: 16,
            planned: 100,
            lr_for_rate_1: 1.0,
            ..LrRangeTest::default()
        };
        for step in 0..100 {
            let lr = 1e-6 * 10f64.powf(6.0 * f64::from(step) / 99.0);
            let loss = loss(lr);
            if !test.add(lr, loss, !loss.is_finite()) {
                break;
            }
        }
        test.conclude();
        test
    }

    #[test]
    fn rates_are_those_of_lightning() {
        // Falls around 1e-3 and rises from 0.05 on.
        let loss = |lr: f64| 1.0 + 1.0 / (1.0 + lr / 1e-3) + (lr / 0.05).powi(4);
        let test = tested(loss);
        assert!(test.diverged && test.steps.len() < 100);
        // lightning.pytorch.tuner.lr_finder of these losses: smoothing 0.98, threshold 4, skip_begin 10, skip_end 1.
        let (mut mean, mut smoothed) = (0.0, Vec::new());
        for (number, step) in test.steps.iter().enumerate() {
            mean = 0.98 * mean + 0.02 * loss(step.lr);
            smoothed.push(mean / (1.0 - 0.98f64.powi(number as i32 + 1)));
        }
        let seen = &smoothed[10..smoothed.len() - 1];
        let slope = |at: usize| match at {
            0 => seen[1] - seen[0],
            _ if at + 1 == seen.len() => seen[at] - seen[at - 1],
            _ => (seen[at + 1] - seen[at - 1]) / 2.0,
        };
        let steepest = (0..seen.len()).min_by(|a, b| slope(*a).total_cmp(&slope(*b))).unwrap();
        let stable = test.largest_stable.unwrap();
        // The losses are least at 1.2e-2.
        assert!((8e-3..2e-2).contains(&stable), "{stable}");
        assert_eq!(test.steepest, Some(test.steps[10 + steepest].lr).filter(|lr| *lr <= stable));
        let text = test.render(false).unwrap();
        assert!(text.contains("--set optim.lr=") && text.contains("diverged"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let line = test.render(true).unwrap();
        let read: LrRangeTest = serde_json::from_str(&line).unwrap();
        assert_eq!((read.steps, read.steepest), (test.steps, test.steepest));
    }

    #[test]
    fn rising_negative_and_infinite_losses_have_an_end() {
        let rising = tested(|lr| 1.0 + lr);
        assert_eq!((rising.steepest, rising.largest_stable, rising.steps.len()), (None, None, 100));
        assert!(rising.render(false).unwrap().contains("falls at no rate"));
        let negative = tested(|lr| -1.0 - lr);
        assert_eq!((negative.diverged, negative.steps.len()), (false, 100));
        assert!(negative.render(false).unwrap().contains("does not fall any more"));
        let infinite = tested(|lr| if lr > 0.1 { f64::NAN } else { 2.0 - lr });
        assert!(infinite.diverged && infinite.steps.last().unwrap().loss.is_none());
        assert!(infinite.render(false).unwrap().contains("not finite"));
        assert!(infinite.render(true).unwrap().contains("null"));
    }
}
