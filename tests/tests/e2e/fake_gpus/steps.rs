//! Counts of the work of a training step on a GPU.

use std::fmt::Write;

use dtrain_test_kit::thorough;
use dtrain_tests::runs::gpt;
use serde_json::Value;

use super::Machine;

/// Operations of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    /// Kernels, with those of graphs.
    kernels: u64,
    /// Copies, with those of graphs.
    copies: u64,
    fills: u64,
    collectives: u64,
    graphs: u64,
    /// Kernels of graphs.
    graph_kernels: u64,
}

const fn step(kernels: u64, copies: u64, fills: u64, collectives: u64) -> Step {
    Step { kernels, copies, fills, collectives, graphs: 0, graph_kernels: 0 }
}

const fn with_graphs(graphs: u64, graph_kernels: u64, step: Step) -> Step {
    Step { graphs, graph_kernels, ..step }
}

/// A GPT of two layers with AdamW on this many GPUs, its settings, and what each rank does in a step.
///
/// The engine decides these numbers: a change of the engine changes them. Fewer are an improvement: write the new
/// line, which the failed test prints. More need a reason. A normal check counts the first four.
#[rustfmt::skip]
const STEPS: &[(usize, &str, Step)] = &[
    (1, "bf16", step(146, 7, 0, 0)),
    (1, "fp16 accumulation recompute", step(804, 22, 0, 0)),
    (1, "fp16 graphs accumulation", with_graphs(5, 635, step(648, 34, 0, 0))),
    (2, "fp32 shards average", step(117, 8, 0, 4)),
    (1, "fp32", step(114, 8, 0, 0)),
    (1, "fp16", step(155, 7, 0, 0)),
    (1, "bf16 accumulation", step(626, 22, 0, 0)),
    (1, "bf16 average", step(147, 7, 0, 0)),
    (1, "bf16 graphs", with_graphs(2, 143, step(147, 10, 0, 0))),
    (2, "bf16", step(146, 7, 0, 2)),
    (2, "fp16 accumulation", step(318, 12, 0, 2)),
    (2, "bf16 graphs", with_graphs(2, 143, step(147, 10, 0, 2))),
    (4, "bf16 shards", step(148, 7, 0, 4)),
];

/// Settings by their names in the table.
fn settings(names: &str) -> Vec<&'static str> {
    let one = |name| match name {
        "fp32" => "precision.amp=off",
        "bf16" => "precision.amp=bf16",
        "fp16" => "precision.amp=fp16",
        "accumulation" => "memory.micro_batch=2",
        "recompute" => "memory.recompute=on",
        "shards" => "memory.shard_optimizer=true",
        "average" => "ema.decay=0.9",
        "graphs" => "model.compile=graph",
        other => panic!("no setting {other}"),
    };
    names.split(' ').flat_map(|name| ["--set", one(name)]).collect()
}

/// Returns the operations of a training's steps, which have one host wait each. A host wait ends a step.
fn steps_of(counts: &Value, expected: usize, names: &str) -> Result<Step, String> {
    let waits = counts["steps"].as_array().unwrap();
    let number = |wait: &Value, name: &str| wait[name].as_u64().unwrap();
    let most = waits.iter().map(|wait| number(wait, "kernels")).max().unwrap_or_default();
    // Waits of the start have no kernels; those of an evaluation have a third.
    let mut trained: Vec<usize> =
        (0..waits.len()).filter(|at| 2 * number(&waits[*at], "kernels") > most).collect();
    let mut expected = expected;
    if names.contains("recompute") {
        // The passes 1, 2, 4, 8, 16 and 32 compare their values on the host; steps have up to four passes.
        expected -= 8;
        trained.drain(..trained.len().saturating_sub(expected));
    }
    if trained.len() != expected || trained[expected - 1] - trained[0] + 1 != expected {
        return Err(format!(
            "{expected} steps should have one host wait each: they end at the waits {trained:?}"
        ));
    }
    // The first steps create the optimizer's state, record graphs and fill buffers. The last copies no next batch.
    let steady: Vec<&Value> = trained[expected / 2..expected - 1].iter().map(|at| &waits[*at]).collect();
    // On a busy machine the loader may be late: a batch is then copied in the next step.
    let mut copies: Vec<u64> = steady.iter().map(|wait| number(wait, "copies")).collect();
    copies.sort_unstable();
    let usual = copies[copies.len() / 2];
    let figures = |wait: &Value| Step {
        kernels: number(wait, "kernels"),
        copies: usual,
        fills: number(wait, "fills"),
        collectives: number(wait, "collectives"),
        graphs: number(wait, "graph_launches"),
        graph_kernels: number(wait, "graph_kernels"),
    };
    let first = figures(steady[0]);
    if let Some(other) = steady.iter().find(|wait| figures(wait) != first) {
        return Err(format!("steps differ: {first:?} and {:?}", figures(other)));
    }
    let in_time: Vec<&&Value> = steady.iter().filter(|wait| number(wait, "copies") == usual).collect();
    if 2 * in_time.len() <= steady.len() {
        return Err(format!("steps differ in their copies: {copies:?}"));
    }
    if let Some(other) = in_time.iter().find(|wait| wait["memory"] != in_time[0]["memory"]) {
        return Err(format!("a step takes memory: {} bytes after {}", other["memory"], in_time[0]["memory"]));
    }
    Ok(first)
}

/// Writes a line of the table.
fn line(gpus: usize, names: &str, step: &Step) -> String {
    let Step { kernels, copies, fills, collectives, graphs, graph_kernels } = step;
    let plain = format!("step({kernels}, {copies}, {fills}, {collectives})");
    match graphs {
        0 => format!("    ({gpus}, {names:?}, {plain}),"),
        _ => format!("    ({gpus}, {names:?}, with_graphs({graphs}, {graph_kernels}, {plain})),"),
    }
}

#[test]
fn a_step_waits_once_and_does_what_the_table_says() {
    const COUNT: usize = 12;
    // No evaluation and no checkpoint before the last step, and no texts of predictions, which wait too.
    let recipe = gpt(COUNT as u64, "pictures = 0\n").replace("train_samples = 32", "train_samples = 128");
    let mut wrong = String::new();
    for (gpus, names, expected) in thorough::cases(STEPS, 4) {
        let Ok(machine) = Machine::new(*gpus, &recipe) else { return };
        let ranks = gpus.to_string();
        let (run, text) = machine.train("run", &[&["--nproc", &ranks], &settings(names)[..]].concat());
        assert!(text.contains(&format!(" on {gpus} x GPU in ")), "{text}");
        assert_eq!(run.result().steps, Some(COUNT as u64), "{names}");
        for (rank, counts) in machine.expect_own_gpus("run", &text).iter().enumerate() {
            let _ = match steps_of(counts, COUNT, names) {
                Ok(found) if found == *expected => Ok(()),
                Ok(found) => writeln!(wrong, "{}  // rank {rank}", line(*gpus, names, &found)),
                Err(why) => writeln!(wrong, "{gpus} x {names}, rank {rank}: {why}"),
            };
        }
    }
    assert!(
        wrong.is_empty(),
        "a step's operations changed (fewer: write the new lines; more: why?):\n{wrong}"
    );
}
