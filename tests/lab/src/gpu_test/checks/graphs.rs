//! Compares trainings with and without CUDA graphs.

use anyhow::{Context, Result};

use super::recipes::{LM, RESNET};
use super::training::divergence;
use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::suite::{Suite, Trained, Training};

/// Kernels with atomic additions sum in any order.
const TOLERANCE: f64 = 1e-4;

pub(in crate::gpu_test) fn checks() -> Vec<Check> {
    vec![
        check("GPT by graphs", 30, |suite| compare_with_graphs(suite, "gpt", LM, 1, &[])),
        check("GPT by graphs, uneven micro-batches", 30, |suite| {
            compare_with_graphs(suite, "gpt-cut", LM, 1, &["memory.micro_batch=5"])
        }),
        check("GPT by graphs, two ranks", 30, |suite| {
            compare_with_graphs(suite, "gpt-two", LM, 2, &["memory.micro_batch=6"])
        }),
        check("ResNet by graphs, with evaluations", 40, |suite| {
            compare_with_graphs(suite, "resnet", RESNET, 1, &["train.steps=24"])
        }),
        check("GPT by graphs, float16", 30, |suite| {
            let recipe = LM.replace("tf32 = false\n", "");
            compare_with_graphs(suite, "gpt-half", &recipe, 1, &["precision.amp=fp16"])
        }),
        check("no capture: training continues without graphs", 20, check_fallback),
    ]
}

fn train(suite: &Suite<'_>, name: &str, recipe: &str, ranks: usize, sets: &[&str]) -> Result<Trained> {
    suite.train(&Training { name, recipe, ranks, sets, vars: &[] })
}

fn replays(run: &Trained) -> Result<u64> {
    run.result["graph_replays"].as_u64().context("result.json has no graph_replays")
}

fn compare_with_graphs(
    suite: &Suite<'_>,
    name: &str,
    recipe: &str,
    ranks: usize,
    sets: &[&str],
) -> Result<Finding> {
    let plain = train(suite, &format!("{name}-kernels"), recipe, ranks, sets)?;
    let sets = [sets, &["model.compile=graph"]].concat();
    let graphs = train(suite, &format!("{name}-graphs"), recipe, ranks, &sets)?;
    let most = divergence(&plain, &graphs)?;
    let replays = replays(&graphs)?;
    Ok(suite
        .judged(
            replays > 0,
            most <= TOLERANCE,
            format!("{replays} replays; losses and norms differ by at most {most:.1e}, goal {TOLERANCE:e}"),
        )
        .with("replays", replays as f64)
        .with("most", most))
}

fn check_fallback(suite: &Suite<'_>) -> Result<Finding> {
    let run = train(suite, "graphs-fallback", LM, 1, &["model.compile=graph", "memory.recompute=on"])?;
    let sentence =
        run.stderr.lines().find(|line| line.contains("continues without CUDA graphs")).unwrap_or_default();
    Ok(Finding::judged(replays(&run)? == 0 && sentence.contains("memory.recompute"), format!("`{sentence}`")))
}
