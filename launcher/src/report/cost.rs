//! Memory and time: what was planned, and what was measured.

use std::collections::BTreeMap;

use dtrain_common::run_dir::RunDir;
use serde::Deserialize;
use serde_json::{Value, json};

use super::metrics::{Column, Metrics};
use super::numbers::percent;
use crate::trace::Verdict;

/// Of `plan.json`.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct Plan {
    pub(super) nproc: Option<u64>,
    pub(super) effective_batch: Option<u64>,
    pub(super) micro_batch: Option<u64>,
    pub(super) device: Option<String>,
    pub(super) parameters: Option<u64>,
    pub(super) warnings: Vec<String>,
    predicted_bytes: BTreeMap<String, f64>,
    budget_bytes: Option<f64>,
    predictions: Vec<Prediction>,
    stages: Vec<Stage>,
}

#[derive(Debug, Clone, Deserialize)]
struct Prediction {
    peak: f64,
    #[serde(default)]
    owners: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, Deserialize)]
struct Stage {
    name: String,
}

/// Owners of memory in the order of a plan.
const OWNERS: [&str; 7] =
    ["parameters", "gradients", "optimizer", "ema", "buffers", "activations", "workspace"];

/// Returns planned and measured memory of each stage: `stage`, `step`, `rows` of `owner`, `planned` and `measured`, `planned_peak`,
/// `measured_peak`; and a `note`.
pub(super) fn memory(plan: &Plan, metrics: &Metrics) -> Vec<Value> {
    let stages = plan.stages.len().max(1);
    let of_stage = |number: usize, stage: Option<&str>| {
        // A plan without a choice computes parts only; of several stages it predicts those whose cut was chosen.
        let predicted = plan.predictions.get(number).filter(|_| plan.predictions.len() == stages);
        let planned = match predicted {
            Some(predicted) => predicted.owners.clone(),
            None if number == 0 => plan.predicted_bytes.clone(),
            None => BTreeMap::new(),
        };
        let measured = metrics.peaks.iter().filter(|peak| peak.stage.as_deref() == stage);
        let measured = measured.max_by(|a, b| a.bytes.total_cmp(&b.bytes));
        let owners = measured.map(|peak| &peak.owners);
        let others = planned.keys().chain(owners.iter().flat_map(|owners| owners.keys()));
        let mut names: Vec<&str> = OWNERS.to_vec();
        for name in others {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let rows = names.into_iter().filter_map(|owner| {
            let (planned, measured) = (planned.get(owner), owners.and_then(|owners| owners.get(owner)));
            let is_something =
                planned.or(measured).is_some() && planned.unwrap_or(&0.0) + measured.unwrap_or(&0.0) > 0.0;
            is_something.then(|| json!({"owner": owner, "planned": planned, "measured": measured}))
        });
        let rows: Vec<_> = rows.collect();
        json!({
            "stage": stage,
            "step": measured.map(|peak| peak.step),
            "rows": rows,
            "planned_peak": predicted.map(|predicted| predicted.peak),
            "measured_peak": measured.map(|peak| peak.bytes),
            "budget": plan.budget_bytes,
        })
    };
    let parts: Vec<Value> = match plan.stages.as_slice() {
        [] => vec![of_stage(0, None)],
        stages => {
            stages.iter().enumerate().map(|(number, stage)| of_stage(number, Some(&stage.name))).collect()
        }
    };
    parts.into_iter().filter(|part| part["rows"].as_array().is_some_and(|rows| !rows.is_empty())).collect()
}

/// Returns the time of a step and of the run by phase, and what bounds a step; null without steps.
pub(super) fn time(metrics: &Metrics, run_dir: &RunDir) -> Value {
    let columns = [Column::StepMs, Column::DataMs, Column::CommMs].map(|column| metrics.column(column));
    let is_known = |at: usize| columns.iter().all(|column| column[at].is_finite());
    let known: Vec<usize> = (0..metrics.steps.len()).filter(|at| is_known(*at)).collect();
    // The first step of a process allocates and compiles: it tells nothing about the others.
    let is_first = |at: usize| at == 0 || metrics.starts.binary_search(&metrics.steps[at]).is_ok();
    let usual: Vec<usize> = known.iter().copied().filter(|at| !is_first(*at)).collect();
    let usual = if usual.is_empty() { &known } else { &usual };
    if usual.is_empty() {
        return Value::Null;
    }
    let sums = |places: &[usize]| columns.map(|column| places.iter().map(|at| column[*at]).sum::<f64>());
    let [step_ms, data_ms, comm_ms] = sums(usual).map(|sum| sum / usual.len() as f64);
    let [all_ms, all_data_ms, all_comm_ms] = sums(&known);
    let evaluations_ms: f64 = metrics.evaluations.iter().chain(&metrics.tests).map(|one| one.eval_ms).sum();
    let blocked_ms = metrics.checkpoints.blocked_ms;
    let whole_ms = all_ms + evaluations_ms + blocked_ms;
    let row = |name: &str, each: Option<f64>, all: f64| {
        json!({
            "name": name, "step_ms": each, "total_s": all / 1e3, "part": all / whole_ms, "percent": percent(all / whole_ms),
        })
    };
    let mut rows = vec![
        row("computing", Some(step_ms - data_ms - comm_ms), all_ms - all_data_ms - all_comm_ms),
        row("waiting for data", Some(data_ms), all_data_ms),
        row("waiting for communication", Some(comm_ms), all_comm_ms),
    ];
    if evaluations_ms > 0.0 {
        rows.push(row("evaluations", None, evaluations_ms));
    }
    if metrics.checkpoints.count > 0 {
        rows.push(row("waiting for checkpoints", None, blocked_ms));
    }
    json!({
        "rows": rows, "step_ms": step_ms, "steps": known.len(), "first": known.len() - usual.len(),
        "conclusion": Verdict::of_run(run_dir).map(|verdict| {
            let steps = if verdict.is_of_timeline { "Steps of the timeline" } else { "The last steps" };
            format!("{steps}: {verdict}")
        }),
        "checkpoints": metrics.checkpoints.count, "checkpoint_bytes": metrics.checkpoints.last_bytes,
    })
}
