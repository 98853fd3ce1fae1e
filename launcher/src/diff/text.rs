//! The comparison for people: a sentence, the inputs that differ, the results that differ.

use super::comparison::Comparison;
use super::inputs;
use super::steps::Difference;
use dtrain_common::text::Align::{Left, Right};
use dtrain_common::text::{columns, counted};

/// The longest value of a cell.
const WIDEST: usize = 40;
/// Tensors that are named.
const TENSORS: usize = 5;

pub(super) fn text(comparison: &Comparison) -> String {
    let mut out = format!("{}\n\n", comparison.sentence());
    for (letter, run) in ["A", "B"].into_iter().zip(&comparison.runs) {
        let last = run.steps.last_key_value().map_or(0, |(step, _)| *step);
        out.push_str(&format!("{letter}: {}, to step {last}\n", run.dir.root().display()));
        for sentence in inputs::attempts(run) {
            out.push_str(&format!("   {sentence}\n"));
        }
    }
    add_inputs(comparison, &mut out);
    add_results(comparison, &mut out);
    let known = comparison.runs.each_ref().map(|run| run.environments().next().is_some());
    if known != [true; 2] || !comparison.steps.has_hashes {
        out.push_str(
            "\nNot compared: an earlier version of dtrain did not record samples, versions and machines in all of these runs.\n",
        );
    }
    // Paths and names may hold anything.
    out.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

fn add_inputs(comparison: &Comparison, out: &mut String) {
    let (shown, others): (Vec<_>, Vec<_>) = comparison.inputs.iter().partition(|input| input.has_effect());
    if !shown.is_empty() {
        let mut rows = vec![["input", "A", "B"].map(str::to_owned).to_vec()];
        rows.extend(shown.iter().map(|input| {
            let [a, b] = input.values.each_ref().map(|value| cut(value));
            vec![input.name.clone(), a, b]
        }));
        out.push('\n');
        columns(out, 0, &[Left, Left, Left], &rows);
    }
    if !others.is_empty() {
        let names: Vec<_> = others.iter().map(|input| input.name.as_str()).collect();
        out.push_str(&format!("\nAlso different, without effect on steps: {}.\n", names.join(", ")));
    }
}

fn add_results(comparison: &Comparison, out: &mut String) {
    let mut rows = vec![["result", "from step", "A", "B", "relative", "largest"].map(str::to_owned).to_vec()];
    rows.extend(comparison.steps.differences.iter().map(|one| row(comparison, one)));
    let weights = comparison.weights.different.as_ref();
    if let Some(checkpoints) = weights {
        let largest = checkpoints.different.first();
        let different = checkpoints.different.len() + checkpoints.unmatched.len();
        let words = format!("{different} of {}", counted(checkpoints.tensors, "tensor"));
        let largest =
            largest.map(|tensor| format!("{:.1e} in {}", tensor.relative, tensor.name)).unwrap_or_default();
        rows.push(vec![
            "weights".into(),
            checkpoints.step.to_string(),
            words,
            String::new(),
            String::new(),
            largest,
        ]);
    }
    if rows.len() == 1 {
        return;
    }
    out.push('\n');
    columns(out, 0, &[Left, Right, Left, Left, Left, Left], &rows);
    let Some(checkpoints) = weights else { return };
    let differing = checkpoints.different.iter().map(|tensor| {
        let [part, all] = tensor.elements;
        format!(
            "{}: {part} of {} differ, by up to {:.3e} (relative {:.1e}), in {}",
            tensor.name,
            counted(all as usize, "element"),
            tensor.largest,
            tensor.relative,
            tensor.file
        )
    });
    let lines: Vec<String> = checkpoints.unmatched.iter().cloned().chain(differing).collect();
    out.push_str(&format!("\nTensors of step {}:\n", checkpoints.step));
    lines.iter().take(TENSORS).for_each(|line| out.push_str(&format!("  {line}\n")));
    if lines.len() > TENSORS {
        out.push_str(&format!("  and {} more; --json has all\n", lines.len() - TENSORS));
    }
}

fn row(comparison: &Comparison, one: &Difference) -> Vec<String> {
    let [a, b] = one.values.each_ref().map(|value| cut(&value.words()));
    let rounding = if comparison.is_rounding(one.step, one.kind, one.relative) { " (rounding)" } else { "" };
    let relative = one.relative.map(|relative| format!("{relative:.1e}{rounding}")).unwrap_or_default();
    let largest = one.largest.filter(|(_, step)| *step != one.step);
    let largest = largest.map(|(size, step)| format!("{size:.1e} at step {step}")).unwrap_or_default();
    vec![one.name.clone(), one.step.to_string(), a, b, relative, largest]
}

/// Returns the beginning of a long value.
fn cut(value: &str) -> String {
    match value.chars().count() > WIDEST {
        true => value.chars().take(WIDEST - 3).chain("...".chars()).collect(),
        false => value.to_owned(),
    }
}
