//! The values that TensorBoard shows of a line of metrics.jsonl.

use dtrain_common::metrics::NO_FIGURES;
use serde_json::{Map, Value as Json};

use super::Rates;
use super::message::{Content, Length, Metadata, Plugin, Shape, Summary, Tensor, Value};

/// The set of an evaluation that names none.
const TEST: &str = "test";
const GIB: f64 = (1_u64 << 30) as f64;

/// A line, as TensorBoard shows it.
pub(super) struct Shown {
    pub(super) step: u64,
    pub(super) values: Vec<Value>,
    pub(super) kind: Kind,
}

/// The subject of a line.
pub(super) enum Kind {
    /// A step, and its milliseconds.
    Step(f64),
    /// An evaluation of this set.
    Evaluation(String),
    Other,
}

/// Returns what is shown of a line; None of a line without a step.
pub(super) fn shown(line: &Json, rates: &[Rates]) -> Option<Shown> {
    let step = |of: &Json| of["step"].as_u64();
    if let Some(eval) = line.get("eval") {
        let set = eval["set"].as_str().unwrap_or(TEST);
        let kind = Kind::Evaluation(set.to_owned());
        return Some(Shown { step: step(eval)?, values: figures(eval, set), kind });
    }
    if let Some(test) = line.get("test") {
        // Apart from evaluations in the training, whose later steps may be there.
        let values = figures(test, &format!("final/{}", test["set"].as_str().unwrap_or(TEST)));
        return Some(Shown { step: step(test)?, values, kind: Kind::Other });
    }
    if let Some(step) = line.get("step").and_then(Json::as_u64) {
        let kind = Kind::Step(line["step_ms"].as_f64().unwrap_or_default());
        return Some(Shown { step, values: of_step(line, rates), kind });
    }
    let (name, of) = line.as_object()?.iter().next()?;
    let step = of.get("step").or_else(|| of.get("to"))?.as_u64()?;
    // The seconds of checkpoints are many, and no news.
    let is_news = ["stage", "oom", "rollback"].contains(&name.as_str());
    let values = is_news.then(|| text(&format!("run/{name}"), &format!("`{of}`")));
    Some(Shown { step, values: values.into_iter().collect(), kind: Kind::Other })
}

fn of_step(line: &Json, rates: &[Rates]) -> Vec<Value> {
    let mut values = Vec::new();
    let mut add = |tag: &str, value: Option<&Json>| {
        values.extend(value.and_then(number).map(|value| scalar(tag, value)));
    };
    for (tag, name) in [
        ("train/loss", "loss"),
        ("train/lr", "lr"),
        ("train/grad_norm", "grad_norm"),
        ("train/epoch", "epoch"),
        ("speed/samples_per_s", "samples_per_s"),
        ("speed/step_ms", "step_ms"),
    ] {
        add(tag, line.get(name));
    }
    if line["loss_scale"].as_f64() != Some(1.0) {
        add("train/loss_scale", line.get("loss_scale"));
    }
    add("speed/wait_data_ms", line["wait_ms"].get("data"));
    add("speed/wait_comm_ms", line["wait_ms"].get("comm"));
    for name in ["allocated", "reserved", "peak"] {
        if let Some(bytes) = line["memory"][name].as_f64() {
            values.push(scalar(&format!("memory/{name}_gib"), bytes / GIB));
        }
    }
    let stage = line["stage"].as_str();
    let own = rates.iter().filter(|rates| rates.stage.as_deref() == stage);
    if let Some(rate) = line["lr"].as_f64() {
        values.extend(
            own.flat_map(|own| &own.factors)
                .map(|(group, factor)| scalar(&format!("lr/{group}"), rate * factor)),
        );
    }
    values
}

/// Returns the loss and the figures of an evaluation.
fn figures(of: &Json, prefix: &str) -> Vec<Value> {
    let fields = of.as_object().map(Map::iter).into_iter().flatten();
    let figures = fields.filter(|(name, _)| {
        !NO_FIGURES.contains(&name.as_str()) && !["checkpoint", "weights", "batch"].contains(&name.as_str())
    });
    figures.filter_map(|(name, value)| Some(scalar(&format!("{prefix}/{name}"), number(value)?))).collect()
}

/// Returns a number; null stands for one that is not finite.
fn number(value: &Json) -> Option<f64> {
    if value.is_null() { Some(f64::NAN) } else { value.as_f64() }
}

fn scalar(tag: &str, value: f64) -> Value {
    Value { tag: tag.to_owned(), metadata: None, content: Some(Content::Scalar(value as f32)) }
}

/// Returns a text, in Markdown.
pub(super) fn text(tag: &str, text: &str) -> Value {
    let tensor = Tensor {
        dtype: 7,
        shape: Some(Shape { lengths: vec![Length { size: 1 }] }),
        texts: vec![text.as_bytes().to_vec()],
    };
    Value {
        tag: tag.to_owned(),
        metadata: Some(of_plugin("text", Vec::new())),
        content: Some(Content::Tensor(tensor)),
    }
}

/// Returns the metadata of a value that a plugin of TensorBoard shows.
pub(super) fn of_plugin(name: &str, content: Vec<u8>) -> Metadata {
    Metadata { plugin: Some(Plugin { name: name.to_owned(), content }), data_class: 2 }
}

/// Puts values into a record.
pub(super) fn summary(values: Vec<Value>) -> super::message::What {
    super::message::What::Summary(Summary { values })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn scalars(line: &str, rates: &[Rates]) -> (u64, Vec<(String, f32)>) {
        let shown = shown(&serde_json::from_str(line).unwrap(), rates).unwrap();
        let scalar = |value: Value| match value.content {
            Some(Content::Scalar(number)) => (value.tag, number),
            other => panic!("{other:?}"),
        };
        (shown.step, shown.values.into_iter().map(scalar).collect())
    }

    #[test]
    fn figures_have_their_sets_and_groups_their_rates() {
        let line = r#"{"step":7,"epoch":2,"stage":"head","loss":null,"lr":0.5,"loss_scale":1.0,"wait_ms":{"data":3.0,"comm":4.0},
            "memory":{"allocated":1073741824,"peak":536870912,"phases":{"forward":1}}}"#;
        let rates = [
            Rates { stage: Some("head".to_owned()), factors: vec![("backbone.*".to_owned(), 0.1)] },
            Rates { stage: Some("all".to_owned()), factors: vec![("other".to_owned(), 0.2)] },
        ];
        let expected = [
            ("train/loss", f32::NAN),
            ("train/lr", 0.5),
            ("train/epoch", 2.0),
            ("speed/wait_data_ms", 3.0),
            ("speed/wait_comm_ms", 4.0),
            ("memory/allocated_gib", 1.0),
            ("memory/peak_gib", 0.5),
            ("lr/backbone.*", 0.05),
        ];
        let (step, found) = scalars(line, &rates);
        assert_eq!(step, 7);
        assert_eq!(
            format!("{found:?}"),
            format!("{:?}", expected.map(|(tag, value)| (tag.to_owned(), value)))
        );

        let eval = r#"{"eval":{"step":9,"set":"val","epoch":1,"loss":1.5,"accuracy":0.25,"samples":3,"eval_ms":2.0,"best":true}}"#;
        // In the order of their names.
        let expected = [("val/accuracy".to_owned(), 0.25), ("val/loss".to_owned(), 1.5)];
        assert_eq!(scalars(eval, &[]), (9, expected.to_vec()));
        let test = r#"{"test":{"checkpoint":"a","weights":"raw","batch":4,"step":6,"epoch":1,"loss":1.0,"samples":3,"eval_ms":2.0}}"#;
        assert_eq!(scalars(test, &[]), (6, vec![("final/test/loss".to_owned(), 1.0)]));
        assert_eq!(scalars(r#"{"checkpoint":{"step":6,"bytes":7}}"#, &[]), (6, Vec::new()));
        let rollback = shown(&serde_json::json!({"rollback": {"from": 9, "to": 4}}), &[]).unwrap();
        assert_eq!((rollback.step, rollback.values[0].tag.as_str()), (4, "run/rollback"));
        assert!(shown(&serde_json::json!({"unknown": {}}), &[]).is_none());
    }
}
