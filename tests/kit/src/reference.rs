//! Reads the JSON files under tests/parity/reference: cases by name, and series of changes.

use std::path::Path;

use serde_json::Value;

/// Returns the cases of a reference file, name and content, sorted by name.
///
/// # Panics
/// If the file is missing or is not a list of cases: run `cargo xtask parity`.
pub fn cases(path: &Path) -> Vec<(String, Value)> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut file: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    match file["cases"].take() {
        Value::Object(cases) if !cases.is_empty() => cases.into_iter().collect(),
        other => panic!("{} has no cases: {other}", path.display()),
    }
}

/// Reads a list of `[step, value]`.
///
/// # Panics
/// If the value is not such a list.
pub fn pairs(list: &Value) -> Vec<(usize, f64)> {
    serde_json::from_value(list.clone())
        .unwrap_or_else(|error| panic!("not a list of steps and values: {error}"))
}

/// Returns the value of each of `steps` steps, from a list of `[step, value]` that names the changes.
///
/// # Panics
/// If the list does not begin with step 0 or goes beyond the last step.
pub fn expand(changes: &Value, steps: usize) -> Vec<f64> {
    let changes = pairs(changes);
    assert_eq!(changes.first().map(|(step, _)| *step), Some(0), "a series begins with step 0");
    let ends = changes[1..].iter().map(|(step, _)| *step).chain([steps]);
    let mut values = Vec::with_capacity(steps);
    for ((step, value), end) in changes.iter().zip(ends) {
        assert!(*step < end, "the steps of a series rise and end before {steps}");
        values.resize(end, *value);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_keeps_its_value_until_the_next_change() {
        let changes = serde_json::json!([[0, 1.5], [2, 3], [3, 0]]);
        assert_eq!(expand(&changes, 5), [1.5, 1.5, 3.0, 0.0, 0.0]);
        assert_eq!(expand(&serde_json::json!([[0, 2]]), 1), [2.0]);
    }
}
