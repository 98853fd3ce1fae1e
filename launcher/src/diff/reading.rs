//! What a run computed: the lines of its steps and evaluations.

use dtrain_common::metrics::NO_FIGURES;
use serde_json::Value;

/// A kind of what a step computes, in the order in which one follows from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The stage and the number of samples.
    Plan,
    Order,
    Content,
    Rate,
    Loss,
    Gradient,
    /// The scale of the loss, and whether the update was skipped.
    Update,
    Evaluation,
    Weights,
}

/// A name with its kind.
pub(super) type Quantity = (Kind, String);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reading {
    Text(String),
    /// NaN for a number that is not finite.
    Number(f64),
}

impl Reading {
    fn of(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Bool(is_set) => Some(Self::Text(is_set.to_string())),
            Value::Number(number) => number.as_f64().map(Self::Number),
            Value::Null => Some(Self::Number(f64::NAN)),
            Value::Array(_) | Value::Object(_) => None,
        }
    }

    pub(super) fn words(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) if number.is_nan() => "not finite".to_owned(),
            Self::Number(number) if *number != 0.0 && !(1e-5..1e15).contains(&number.abs()) => {
                format!("{number:e}")
            }
            Self::Number(number) => number.to_string(),
        }
    }

    pub(super) fn json(&self) -> Value {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Number(number) => (*number).into(),
        }
    }
}

/// The readings of a step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Step {
    pub(super) readings: Vec<(Quantity, Reading)>,
    /// Sums of the hashes of all samples, and by bit of a sample's number, of those that have it. Empty in runs of earlier versions.
    pub(super) numbers: Vec<u32>,
}

impl Step {
    /// Reads a step's line. Times and memory are left out.
    pub(super) fn of(line: &Value) -> Self {
        let mut readings = Vec::new();
        let mut add = |kind, name: &str, value: &Value| {
            readings.extend(Reading::of(value).map(|reading| ((kind, name.to_owned()), reading)));
        };
        let fields = [
            (Kind::Plan, "stage", "stage"),
            (Kind::Plan, "samples", "samples so far"),
            (Kind::Order, "order", "order of the samples"),
            (Kind::Rate, "lr", "learning rate"),
            (Kind::Loss, "loss", "loss"),
            (Kind::Gradient, "grad_norm", "gradient norm"),
            (Kind::Update, "loss_scale", "loss scale"),
        ];
        for (kind, field, name) in fields {
            line.get(field).into_iter().for_each(|value| add(kind, name, value));
        }
        for (field, hash) in line["content"].as_object().into_iter().flatten() {
            add(Kind::Content, &format!("samples' {field}"), hash);
        }
        add(Kind::Update, "update skipped", &line.get("skipped").is_some().into());
        let digits = line["content_numbers"].as_str().unwrap_or_default().as_bytes().as_chunks::<8>().0;
        let number = |digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        Self { readings, numbers: digits.iter().map_while(|digits| number(digits)).collect() }
    }

    /// Returns the number of the only sample whose content differs; `None` if it is not known, or if several differ.
    pub(super) fn changed_sample(&self, other: &Self) -> Option<u32> {
        let differences = || self.numbers.iter().zip(&other.numbers).map(|(a, b)| b.wrapping_sub(*a));
        let all = differences().next().filter(|all| *all != 0)?;
        // One sample: a sum has its whole difference or none of it.
        differences().skip(1).enumerate().try_fold(0, |number, (bit, part)| match part {
            0 => Some(number),
            part if part == all => 1u32.checked_shl(bit as u32).map(|one| number | one),
            _ => None,
        })
    }
}

/// The figures of an evaluation.
#[derive(Debug, PartialEq)]
pub(super) struct Evaluation {
    pub(super) step: u64,
    /// The name of the set; of a test also that it is one.
    pub(super) set: String,
    pub(super) readings: Vec<(Quantity, Reading)>,
}

impl Evaluation {
    /// Reads a line of an evaluation or of a test.
    pub(super) fn of(line: &Value) -> Option<Self> {
        let (word, of) =
            ["eval", "test"].into_iter().find_map(|key| Some((key, line.get(key)?.as_object()?)))?;
        let set = of.get("set").and_then(Value::as_str).unwrap_or("test");
        let set = if word == "test" { format!("{set} at the end") } else { set.to_owned() };
        let is_figure = |key: &str| {
            let is_other = NO_FIGURES.contains(&key) || ["checkpoint", "weights", "batch"].contains(&key);
            !is_other || ["samples", "unreadable"].contains(&key)
        };
        let name = |figure: &str| (Kind::Evaluation, format!("{figure} of {set}"));
        let readings = of.iter().filter(|(key, _)| is_figure(key));
        let readings = readings.filter_map(|(key, value)| Some((name(key), Reading::of(value)?))).collect();
        Some(Self { step: of.get("step")?.as_u64()?, set, readings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn step(numbers: &[u32]) -> Step {
        let digits: String = numbers.iter().map(|number| format!("{number:08x}")).collect();
        Step::of(&json!({"step": 1, "loss": 0.5, "content_numbers": digits}))
    }

    #[test]
    fn the_only_changed_sample_is_found() {
        // Sample 5 of 8 differs by 7.
        assert_eq!(step(&[10, 20, 30, 40]).changed_sample(&step(&[17, 27, 30, 47])), Some(5));
        assert_eq!(step(&[10, 20]).changed_sample(&step(&[3, 20])), Some(0));
        // Samples 1 and 4 differ.
        assert_eq!(step(&[10, 20, 30, 40]).changed_sample(&step(&[17, 22, 30, 45])), None);
        assert_eq!(step(&[10, 20]).changed_sample(&step(&[10, 20])), None);
        assert_eq!(step(&[]).changed_sample(&step(&[10, 20])), None);
        // The number of a sample has 32 bits.
        assert_eq!(step(&[10; 41]).changed_sample(&step(&[17; 41])), None);
    }

    #[test]
    fn times_and_memory_are_no_readings() {
        let line = json!({
            "step": 3, "epoch": 1, "samples": 8, "loss": null, "lr": 0.1, "grad_norm": 2.0, "order": "ab", "step_ms": 3.0,
            "content": {"image": "cd"}, "memory": {"peak": 1}, "wait_ms": {"data": 1.0}, "samples_per_s": 4.0, "skipped": true,
        });
        let names: Vec<_> = Step::of(&line).readings.into_iter().map(|((_, name), _)| name).collect();
        let all = [
            "samples so far",
            "order of the samples",
            "learning rate",
            "loss",
            "gradient norm",
            "samples' image",
            "update skipped",
        ];
        assert_eq!(names, all);
        let line = json!({"eval": {"step": 3, "epoch": 1, "loss": 0.5, "accuracy": 1.0, "samples": 8, "eval_ms": 3.0, "best": true}});
        let evaluation = Evaluation::of(&line).map(|one| (one.set, one.readings.len()));
        assert_eq!(evaluation, Some(("test".to_owned(), 3)));
        assert!(Evaluation::of(&json!({"step": 3, "loss": 0.5})).is_none());
    }
}
