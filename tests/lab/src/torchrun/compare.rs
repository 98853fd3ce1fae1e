//! Compares the results of two launchers.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Returns the output of the ranks of `ddp_script.py`, sorted by rank. A launcher may add prefixes and other
/// lines.
pub(super) fn parse_answers(stdout: &str, world: usize) -> Result<Vec<Value>> {
    let objects = stdout.lines().filter_map(|line| {
        let value: Value = serde_json::from_str(&line[line.find('{')?..]).ok()?;
        value["rank"].as_u64().map(|rank| (rank, value))
    });
    let mut answers: Vec<(u64, Value)> = objects.collect();
    answers.sort_by_key(|(rank, _)| *rank);
    let ranks: Vec<u64> = answers.iter().map(|(rank, _)| *rank).collect();
    ensure!(
        ranks.iter().copied().eq(0..world as u64),
        "ranks {ranks:?} answered, expected each of {world} once"
    );
    let answers: Vec<Value> = answers.into_iter().map(|(_, answer)| answer).collect();
    let first = answers.first().context("no rank answered")?;
    for answer in &answers {
        ensure!(
            answer["world"] == world && answer["local_rank"] == answer["rank"],
            "wrong world size or local rank: {answer}"
        );
        ensure!(
            answer["parameters"].is_string() && answer["parameters"] == first["parameters"],
            "the ranks have different parameters: {first} and {answer}"
        );
        ensure!(answer["loss"].is_f64(), "no loss: {answer}");
    }
    Ok(answers)
}

/// Returns the losses of the steps in a metrics.jsonl.
pub(super) fn read_losses(metrics: &str, steps: usize) -> Result<Vec<Value>> {
    let mut losses = Vec::new();
    for step in xtask::metrics::steps(metrics)? {
        ensure!(step["loss"].is_f64(), "step {} has no loss", step["step"]);
        losses.push(step["loss"].clone());
    }
    ensure!(losses.len() == steps, "{} steps, expected {steps}", losses.len());
    Ok(losses)
}

/// Describes the first values that differ in any bit. `of` names the values; `first` is the number of the
/// first value.
pub(super) fn difference(of: &str, first: usize, ours: &[Value], theirs: &[Value]) -> Option<String> {
    if ours.len() != theirs.len() {
        return Some(format!("{of}: {} with dtrain, {} with torchrun", ours.len(), theirs.len()));
    }
    let index = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs)?;
    Some(format!("{of} {}: {} with dtrain, {} with torchrun", first + index, ours[index], theirs[index]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn answer(rank: u32, loss: f64, parameters: &str) -> String {
        json!({"rank": rank, "local_rank": rank, "world": 2, "loss": loss, "parameters": parameters})
            .to_string()
    }

    #[test]
    fn answers_are_found_behind_prefixes_and_among_other_lines() {
        let (one, other) = (answer(0, 0.5, "ab"), answer(1, 0.75, "ab"));
        let plain = parse_answers(&format!("{other}\n{one}\n"), 2).unwrap();
        assert_eq!(plain[1]["loss"], 0.75);
        let dtrain = format!("[rank 1] {other}\nwords {{}}\n[rank 0] {one}\n");
        assert_eq!(parse_answers(&dtrain, 2).unwrap(), plain);
    }

    #[test]
    fn inconsistent_answers_are_errors() {
        let parse_error = |lines: [String; 2]| parse_answers(&lines.join("\n"), 2).unwrap_err().to_string();
        let one = || answer(0, 0.5, "ab");
        assert!(parse_error([one(), String::new()]).contains("ranks [0] answered"));
        assert!(parse_error([one(), one()]).contains("ranks [0, 0] answered"));
        assert!(parse_error([one(), answer(1, 0.5, "cd")]).contains("different parameters"));
        let elsewhere = answer(1, 0.5, "ab").replace("\"world\":2", "\"world\":1");
        assert!(parse_error([one(), elsewhere]).contains("wrong world size"));
        let silent = json!({"rank": 1, "local_rank": 1, "world": 2, "parameters": "ab"}).to_string();
        assert!(parse_error([one(), silent]).contains("no loss"));
    }

    #[test]
    fn losses_are_read_from_lines_of_steps() {
        let metrics = "{\"step\":1,\"loss\":2.5}\n{\"eval\":{\"loss\":9.0}}\n{\"step\":2,\"loss\":2.25}\n";
        assert_eq!(read_losses(metrics, 2).unwrap(), [json!(2.5), json!(2.25)]);
        assert!(read_losses(metrics, 3).unwrap_err().to_string().contains("2 steps, expected 3"));
        assert!(read_losses("{\"step\":1}", 1).unwrap_err().to_string().contains("step 1 has no loss"));
        assert!(read_losses("{", 1).is_err());
    }

    #[test]
    fn a_difference_in_the_last_bit_is_reported() {
        let steps = |last: f64| [json!(0.5), json!(last)];
        assert_eq!(difference("step", 1, &steps(0.1), &steps(0.1)), None);
        let text = difference("step", 1, &steps(0.1f64.next_up()), &steps(0.1)).unwrap();
        assert!(text.starts_with("step 2: 0.10000000000000002 with dtrain, 0.1 with"), "{text}");
        let text = difference("step", 1, &steps(0.1)[..1], &steps(0.1)).unwrap();
        assert_eq!(text, "step: 1 with dtrain, 2 with torchrun");
    }
}
