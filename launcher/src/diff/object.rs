//! The comparison as JSON. Its form is part of the command line: names stay, others may be added.

use super::comparison::{Comparison, First, Verdict};
use super::inputs::{self, Input};
use super::reading::{Kind, Reading};
use super::steps::Difference;
use super::weights::{Checkpoints, Tensor};
use serde_json::{Value, json};

pub(super) fn object(comparison: &Comparison) -> Value {
    let (first, last, count) = comparison.steps.steps;
    let verdict = match comparison.verdict() {
        Verdict::Equal => "equal",
        Verdict::Rounding => "rounding",
        Verdict::Different => "different",
    };
    let causes = comparison.causes();
    json!({
        "verdict": verdict,
        "about": comparison.sentence(),
        "runs": comparison.runs.each_ref().map(|run| json!({
            "path": run.dir.root().to_string_lossy(),
            "last_step": run.steps.last_key_value().map(|(step, _)| step),
            "attempts": inputs::attempts(run),
        })),
        "steps": {"first": first, "last": last, "count": count},
        "evaluations": comparison.steps.evaluations,
        "tolerance": comparison.tolerance,
        "first": comparison.first().map(|first| of_first(&first)),
        "causes": causes.iter().map(|input| &input.name).collect::<Vec<_>>(),
        "inputs": comparison.inputs.iter().map(input).collect::<Vec<_>>(),
        "results": comparison.steps.differences.iter().map(|one| result(comparison, one)).collect::<Vec<_>>(),
        "changed_samples": {"numbers": comparison.steps.changed_samples, "names": comparison.names, "more": comparison.steps.has_more_changed},
        "checkpoints": {
            "equal": comparison.weights.equal,
            "different": comparison.weights.different.as_ref().map(checkpoints),
        },
    })
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Plan => "plan",
        Kind::Order => "order",
        Kind::Content => "content",
        Kind::Rate => "lr",
        Kind::Loss => "loss",
        Kind::Gradient => "grad_norm",
        Kind::Update => "update",
        Kind::Evaluation => "evaluation",
        Kind::Weights => "weights",
    }
}

fn of_first(first: &First<'_>) -> Value {
    json!({ "step": first.step, "kind": word(first.kind), "relative": first.relative })
}

fn input(input: &Input) -> Value {
    json!({
        "source": input.source.word(), "name": input.name, "values": input.values, "has_effect": input.has_effect(),
    })
}

fn result(comparison: &Comparison, one: &Difference) -> Value {
    json!({
        "kind": word(one.kind),
        "name": one.name,
        "step": one.step,
        "values": one.values.each_ref().map(Reading::json),
        "relative": one.relative,
        "rounding": comparison.is_rounding(one.step, one.kind, one.relative),
        "largest": one.largest.map(|(size, step)| json!({"relative": size, "step": step})),
        "steps": one.count,
    })
}

fn checkpoints(checkpoints: &Checkpoints) -> Value {
    let tensor = |tensor: &Tensor| {
        let [different, elements] = tensor.elements;
        json!({
            "file": tensor.file, "name": tensor.name, "different": different, "elements": elements,
            "largest": tensor.largest, "relative": tensor.relative,
        })
    };
    json!({
        "step": checkpoints.step,
        "tensors": checkpoints.tensors,
        "different": checkpoints.different.iter().map(tensor).collect::<Vec<_>>(),
        "unmatched": checkpoints.unmatched,
        "damaged": checkpoints.damaged,
    })
}
