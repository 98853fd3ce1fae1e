//! Compares trainings with and without CUDA graphs.

use anyhow::{Context, Result};

use super::recipes::{LM, RESNET};
use super::training::diverged;
use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::site::{Site, Trained, Training};

/// Kernels with atomic additions sum in any order.
const TOLERANCE: f64 = 1e-4;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("a GPT by graphs", 30, |site| beside(site, "gpt", LM, 1, &[])),
        check("a GPT by graphs, in micro-batches with a rest", 30, |site| {
            beside(site, "gpt-cut", LM, 1, &["memory.micro_batch=5"])
        }),
        check("a GPT by graphs, on two ranks", 30, |site| {
            beside(site, "gpt-two", LM, 2, &["memory.micro_batch=6"])
        }),
        check("a ResNet by graphs, evaluated in between", 40, |site| {
            beside(site, "resnet", RESNET, 1, &["train.steps=24"])
        }),
        check("a GPT by graphs, in float16", 30, |site| {
            let recipe = LM.replace("tf32 = false\n", "");
            beside(site, "gpt-half", &recipe, 1, &["precision.amp=fp16"])
        }),
        check("what cannot be captured goes on without", 20, refused),
    ]
}

fn train(site: &Site<'_>, name: &str, recipe: &str, ranks: usize, sets: &[&str]) -> Result<Trained> {
    site.train(&Training { name, recipe, ranks, sets, vars: &[] })
}

fn replays(run: &Trained) -> Result<u64> {
    run.result["graph_replays"].as_u64().context("result.json does not tell of graphs")
}

fn beside(site: &Site<'_>, name: &str, recipe: &str, ranks: usize, sets: &[&str]) -> Result<Finding> {
    let plain = train(site, &format!("{name}-kernels"), recipe, ranks, sets)?;
    let sets = [sets, &["model.compile=graph"]].concat();
    let graphs = train(site, &format!("{name}-graphs"), recipe, ranks, &sets)?;
    let most = diverged(&plain, &graphs)?;
    let replays = replays(&graphs)?;
    Ok(Finding::judged(
        most <= TOLERANCE && replays > 0,
        format!("{replays} replays; losses and norms differ by at most {most:.1e}, goal {TOLERANCE:e}"),
    )
    .with("replays", replays as f64)
    .with("most", most))
}

fn refused(site: &Site<'_>) -> Result<Finding> {
    let run = train(site, "graphs-refused", LM, 1, &["model.compile=graph", "memory.recompute=on"])?;
    let sentence =
        run.stderr.lines().find(|line| line.contains("no graphs from here on")).unwrap_or_default();
    Ok(Finding::judged(
        replays(&run)? == 0 && sentence.contains("computed again in backward"),
        format!("`{sentence}`"),
    ))
}
