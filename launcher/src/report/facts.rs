//! The five figures of a run that matter first.

use std::collections::BTreeMap;
use std::time::Duration;

use dtrain_common::result::RunResult;
use dtrain_common::text::{grouped, size};
use serde_json::{Value, json};

use super::metrics::{Column, Evaluation, Metrics};
use super::numbers::short;
use crate::runs;
use crate::times::about;

/// Figures that stand for a run if it has no `checkpoint.best`, most telling first.
const TELLING: [&str; 8] = ["accuracy", "mean_iou", "auc", "dice", "iou", "rmse", "mae", "perplexity"];

/// The sources of the figures.
pub(super) struct Sources<'a> {
    /// The object of `dtrain runs --json`.
    pub(super) summary: &'a Value,
    pub(super) result: &'a RunResult,
    pub(super) metrics: &'a Metrics,
}

impl Sources<'_> {
    /// Returns objects of `label`, `value` and `note`, always five, in the same order. An unknown value is a dash.
    pub(super) fn facts(&self) -> Vec<Value> {
        let fact = |label: String, value: Option<String>, notes: Vec<Option<String>>| {
            let note: Vec<_> = notes.into_iter().flatten().collect();
            json!({"label": label, "value": value.unwrap_or_else(|| "–".to_owned()), "note": note.join(", ")})
        };
        let (label, value, note) = self.figure();
        let losses = self.metrics.column(Column::Loss);
        let last_step = self.metrics.steps.last().map(|step| format!("at step {}", grouped(*step)));
        let peak = self.result.peak_memory_bytes.iter().max().copied();
        let measured = self.metrics.peaks.iter().map(|peak| peak.bytes as u64).max();
        let ranks = self.result.peak_memory_bytes.len();
        let (progress, progress_note) = self.progress();
        let speed = self.result.samples_per_s.or_else(|| median(self.metrics.column(Column::SamplesPerS)));
        let wall = self.result.wall_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        vec![
            fact(label, value, vec![note]),
            fact("training loss".into(), losses.last().map(|loss| short(*loss)), vec![last_step]),
            fact("progress".into(), progress, progress_note),
            fact(
                "samples per second".into(),
                speed.map(short),
                vec![wall.map(|wall| format!("{} in all, with start and evaluations", about(wall)))],
            ),
            fact(
                "peak memory of a rank".into(),
                peak.or(measured).map(size),
                vec![match (peak, ranks) {
                    (Some(_), 2..) => Some(format!("the largest of {ranks} ranks")),
                    (None, _) => measured.map(|_| "of rank 0".to_owned()),
                    _ => None,
                }],
            ),
        ]
    }

    /// Returns label, value and note of the figure that stands for the run.
    fn figure(&self) -> (String, Option<String>, Option<String>) {
        let best = &self.summary["best"];
        if let (Some(figure), Some(value)) = (best["figure"].as_str(), best["value"].as_f64()) {
            let note = best["step"].as_u64().map(|step| format!("at step {}", grouped(step)));
            return (format!("best {}", figure.replace('_', " ")), Some(short(value)), note);
        }
        let Some(last) = self.metrics.evaluations.last() else {
            return ("evaluation".to_owned(), None, Some("no evaluation yet".to_owned()));
        };
        let names = || last.figures.keys().map(String::as_str);
        let telling = TELLING.into_iter().find(|name| names().any(|own| own == *name));
        let name = telling.or_else(|| names().find(|name| *name != "loss")).unwrap_or("loss");
        let value = last.figures.get(name).copied().unwrap_or(f64::NAN);
        let note = format!("{} set, at step {}", last.set, grouped(last.step));
        (name.replace('_', " "), Some(short(value)), Some(note))
    }

    fn progress(&self) -> (Option<String>, Vec<Option<String>>) {
        let number = |key: &str| self.summary[key].as_u64();
        let step = number("step").or(self.metrics.steps.last().copied());
        let of = |done: Option<u64>, total: Option<u64>, what: &str| {
            let total = total.map(|total| format!(" of {}", grouped(total))).unwrap_or_default();
            done.map(|done| format!("{}{total} {what}", grouped(done)))
        };
        let percent = runs::percent(step, number("total_steps")).map(|percent| format!("{percent}%"));
        let steps = of(step, number("total_steps"), "steps");
        let epochs = of(number("epoch").or(self.metrics.epoch), number("total_epochs"), "epochs");
        let left = self.summary["remaining_s"].as_f64();
        let left = left.and_then(|left| Duration::try_from_secs_f64(left).ok());
        let (shown, steps) = if percent.is_some() { (percent, steps) } else { (steps, None) };
        (shown, vec![steps, epochs, left.map(|left| format!("{} left", about(left)))])
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Returns the last evaluation and the test of each set: objects of `set`, `when`, and figures by name.
pub(super) fn results(metrics: &Metrics) -> Vec<Value> {
    let mut last: BTreeMap<&str, &Evaluation> = BTreeMap::new();
    for evaluation in &metrics.evaluations {
        last.insert(&evaluation.set, evaluation);
    }
    let best = metrics.evaluations.iter().rfind(|one| one.is_best);
    let row = |one: &Evaluation, when: String| {
        json!({
            "set": one.set, "when": when, "figures": numbers(&one.figures), "samples": one.samples, "unreadable": one.unreadable,
        })
    };
    let mut rows: Vec<_> =
        last.values().map(|one| row(one, format!("last evaluation, step {}", grouped(one.step)))).collect();
    if let Some(best) =
        best.filter(|best| last.get(best.set.as_str()).is_none_or(|last| last.step != best.step))
    {
        rows.push(row(best, format!("best checkpoint, step {}", grouped(best.step))));
    }
    rows.extend(metrics.tests.iter().map(|one| {
        let checkpoint = one.checkpoint.as_deref().unwrap_or("a checkpoint");
        row(one, format!("test at the end, of {checkpoint} (step {})", grouped(one.step)))
    }));
    rows
}

fn numbers(figures: &BTreeMap<String, f64>) -> Value {
    figures
        .iter()
        .map(|(name, value)| (name.clone(), Value::from(*value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
