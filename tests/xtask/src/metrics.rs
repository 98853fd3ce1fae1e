//! Reads the lines of a metrics.jsonl.

use anyhow::{Context, Result};
use serde_json::Value;

/// Returns the lines of optimizer steps in order. Every other line is an object with one key, which names its
/// kind: an evaluation, a checkpoint, a stage, a step that ran out of memory.
pub fn steps(text: &str) -> Result<Vec<Value>> {
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
