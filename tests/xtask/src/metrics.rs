//! The lines of a metrics.jsonl.

use anyhow::{Context, Result};
use serde_json::Value;

/// Those that are of optimizer steps, in their order. Each of the others is an object of one key, which says what it is of: an
/// evaluation, a checkpoint, a stage, a step that ran out of memory.
pub(crate) fn steps(text: &str) -> Result<Vec<Value>> {
    let mut steps = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line: Value =
            serde_json::from_str(line).with_context(|| format!("line {} is not JSON", index + 1))?;
        if line.get("step").is_some() {
            steps.push(line);
        }
    }
    Ok(steps)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn whatever_else_a_run_writes_is_no_step() {
        let text = r#"{"stage":{"step":1,"name":"all"}}
{"step":1,"loss":2.5}
{"oom":{"step":2}}
{"step":2,"loss":null,"skipped":true}
{"eval":{"step":2,"loss":9.0}}
{"checkpoint":{"step":2,"bytes":7}}
"#;
        let numbers: Vec<_> = steps(text)
            .unwrap()
            .iter()
            .map(|step| step["step"].clone())
            .collect();
        assert_eq!(numbers, [1, 2]);
        let error = steps("{\"step\":1}\n{").unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
