//! The curves of a run.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::curve::{Curve, running_mean};
use super::metrics::{Column, Evaluation, Metrics};

/// Curves of fewer steps are not smoothed.
const SMOOTHED_FROM: usize = 200;

/// Returns the charts in the order of the page: an object of `key`, `title`, `unit` and `lines` each. A line has `label`, `form` (`steps`,
/// `mean` or `points`), `x` and `y`.
pub(super) fn charts(metrics: &Metrics, spans: usize) -> Vec<Value> {
    let maker = Maker { metrics, spans };
    let mut charts = vec![maker.loss()];
    charts.extend(maker.figures());
    charts.extend([
        maker.chart("lr", "learning rate", "", &[("learning rate", Column::Lr)]),
        maker.smoothed("grad_norm", "gradient norm", Column::GradNorm),
        maker.smoothed("speed", "samples per second", Column::SamplesPerS),
        maker.chart(
            "step_ms",
            "milliseconds of a step",
            "ms",
            &[
                ("whole step", Column::StepMs),
                ("waiting for data", Column::DataMs),
                ("waiting for communication", Column::CommMs),
            ],
        ),
        maker.chart("memory", "peak memory of rank 0", "bytes", &[("peak memory", Column::Peak)]),
    ]);
    let scales = metrics.column(Column::LossScale);
    if scales.iter().any(|scale| *scale != 1.0 && !scale.is_nan()) {
        charts.push(maker.chart("loss_scale", "loss scale", "", &[("loss scale", Column::LossScale)]));
    }
    charts.retain(|chart| chart["lines"].as_array().is_some_and(|lines| !lines.is_empty()));
    charts
}

struct Maker<'a> {
    metrics: &'a Metrics,
    spans: usize,
}

impl Maker<'_> {
    /// Returns the line of values by step; `None` if none is a number.
    fn line(&self, label: &str, form: &str, y: &[f64]) -> Option<Value> {
        let has_numbers = y.iter().any(|value| value.is_finite());
        has_numbers.then(|| line(label, form, &Curve::new(&self.metrics.steps, y, self.spans)))
    }

    fn chart(&self, key: &str, title: &str, unit: &str, columns: &[(&str, Column)]) -> Value {
        let lines = columns.iter();
        let lines =
            lines.filter_map(|(label, column)| self.line(label, "steps", self.metrics.column(*column)));
        chart(key, title, unit, lines.collect())
    }

    /// Returns the lines of a column, and of its running mean if there are many steps.
    fn with_mean(&self, label: &str, column: Column) -> Vec<Value> {
        let y = self.metrics.column(column);
        let mut lines: Vec<_> = self.line(label, "steps", y).into_iter().collect();
        if y.len() >= SMOOTHED_FROM {
            let window = y.len() / 100 + 1;
            lines.extend(self.line(
                &format!("{label}, mean of {window} steps"),
                "mean",
                &running_mean(y, window),
            ));
        }
        lines
    }

    fn smoothed(&self, key: &str, title: &str, column: Column) -> Value {
        chart(key, title, "", self.with_mean(title, column))
    }

    fn loss(&self) -> Value {
        let mut lines = self.with_mean("training", Column::Loss);
        lines.extend(self.of_evaluations("loss"));
        chart("loss", "loss", "", lines)
    }

    fn figures(&self) -> Vec<Value> {
        let names: BTreeSet<&String> =
            self.metrics.evaluations.iter().flat_map(|one| one.figures.keys()).collect();
        let names = names.into_iter().filter(|name| *name != "loss");
        names
            .map(|name| {
                chart(&format!("figure {name}"), &name.replace('_', " "), "", self.of_evaluations(name))
            })
            .collect()
    }

    /// Returns a line for each set whose evaluations have the figure.
    fn of_evaluations(&self, figure: &str) -> Vec<Value> {
        let of_figure = |one: &&Evaluation| one.figures.contains_key(figure);
        let evaluations: Vec<_> = self.metrics.evaluations.iter().filter(of_figure).collect();
        let sets: BTreeSet<&str> = evaluations.iter().map(|one| one.set.as_str()).collect();
        let of_set = |set: &str| {
            let mut points: Vec<(u64, f64)> = Vec::new();
            for one in evaluations.iter().filter(|one| one.set == set) {
                // An evaluation that was made again counts once.
                while points.last().is_some_and(|(step, _)| *step >= one.step) {
                    points.pop();
                }
                points.push((one.step, one.figures[figure]));
            }
            let (x, y): (Vec<u64>, Vec<f64>) = points.into_iter().unzip();
            // Evaluations are at any distance: a missing step is no gap.
            let mut curve = Curve::new(&(0..x.len() as u64).collect::<Vec<_>>(), &y, self.spans);
            curve.x.iter_mut().for_each(|at| *at = x[*at as usize]);
            line(set, "points", &curve)
        };
        sets.into_iter().map(of_set).collect()
    }
}

fn chart(key: &str, title: &str, unit: &str, lines: Vec<Value>) -> Value {
    json!({"key": key, "title": title, "unit": unit, "lines": lines})
}

fn line(label: &str, form: &str, curve: &Curve) -> Value {
    json!({"label": label, "form": form, "x": curve.x, "y": curve.y, "reduced_from": curve.reduced_from})
}
