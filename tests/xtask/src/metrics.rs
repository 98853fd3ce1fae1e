//! The lines of a metrics.jsonl.

use anyhow::{Context, Result};
use serde_json::Value;

/// Those that are of optimizer steps, in their order. Each of the others is an object of one key, which says what it is of: an
/// evaluation, a checkpoint, a stage, a step that ran out of memory.
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
