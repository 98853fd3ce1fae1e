//! The lines of `metrics.jsonl`.

use serde_json::Value;

/// Keys of lines other than a step's, and the field of their step; for a rollback the step it returned to.
const INNER: [(&str, &str); 5] =
    [("eval", "step"), ("stage", "step"), ("oom", "step"), ("checkpoint", "step"), ("rollback", "to")];

/// Returns the step of a line; `None` for a cut-off line, and for a test, which every finished run repeats.
pub fn step_of(line: &[u8]) -> Option<u64> {
    let value: Value = serde_json::from_slice(line).ok()?;
    // A step's own line has its stage's name under the key `stage`, and its step at the top level.
    let inner = INNER.into_iter().find_map(|(key, step)| value.get(key)?.get(step));
    inner.or_else(|| value.get("step"))?.as_u64()
}

/// Splits the lines into those of steps up to `last`, and all others; each keeps its line break.
pub fn split(text: &[u8], last: u64) -> (Vec<u8>, Vec<u8>) {
    let (mut kept, mut others) = (Vec::new(), Vec::new());
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let side = match step_of(line) {
            Some(step) if step <= last => &mut kept,
            _ => &mut others,
        };
        side.extend_from_slice(line);
        side.push(b'\n');
    }
    (kept, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_line_has_a_step() {
        for (line, step) in [
            (r#"{"step": 3, "loss": 1.0, "stage": "full"}"#, Some(3)),
            (r#"{"eval": {"step": 4}}"#, Some(4)),
            (r#"{"rollback": {"from": 128, "to": 32}}"#, Some(32)),
            (r#"{"test": {"step": 6}}"#, None),
            (r#"{"step": 3, "lo"#, None),
        ] {
            assert_eq!(step_of(line.as_bytes()), step, "{line}");
        }
        let text = b"{\"step\": 1}\n{\"eval\": {\"step\": 2}}\n{\"step\": 3}\n{\"st";
        let (kept, others) = split(text, 2);
        assert_eq!(kept, b"{\"step\": 1}\n{\"eval\": {\"step\": 2}}\n");
        assert_eq!(others, b"{\"step\": 3}\n{\"st\n");
    }
}
