//! Trainings that decode their images, or take them from memory: does the loader keep up with the GPU?

use anyhow::Result;

use super::super::check::Check;
use super::super::finding::Finding;
use super::super::suite::{Suite, Training};
use super::inputs::{Images, images};
use crate::bench::number;
use crate::files;
use crate::stats::median;

const BATCH: usize = 64;

/// Four epochs.
const STEPS: usize = 64;

/// Returns the checks; they have no goal.
pub(in crate::gpu_test) fn loaders() -> Vec<Check> {
    let check = |name: &str, cache: &'static str, seconds| Check {
        name: name.to_owned(),
        seconds,
        run: Box::new(move |suite| train(suite, cache)),
    };
    vec![
        check("ResNet-50: 224 pixels, from the cache", "data.cache=\"1 GiB\"", 30),
        check("ResNet-50: 224 pixels, decoded from 512 pixels", "data.cache=\"off\"", 60),
    ]
}

fn train(suite: &Suite<'_>, cache: &str) -> Result<Finding> {
    let root =
        images(&suite.work, &Images { name: "loader-images", count: 16 * BATCH, classes: 1000, side: 512 })?;
    let recipe = files::read(&suite.bench.join("gpu-resnet50.toml"))?;
    let sets = [
        cache.to_owned(),
        format!("data.root={}", root.display()),
        format!("train.effective_batch={BATCH}"),
        format!("memory.micro_batch={BATCH}"),
        format!("train.steps={STEPS}"),
    ];
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let name = if cache.contains("off") { "loader-decodes" } else { "loader-cache" };
    let run = suite.train(&Training { name, recipe: &recipe, ranks: 1, sets: &sets, vars: &[] })?;
    // The first epoch decodes all images in both.
    let counted = &run.steps[STEPS / 4..];
    let ended = run.per_step("elapsed_s")?;
    let seconds = ended[STEPS - 1] - ended[STEPS / 4 - 1];
    let waited = counted.iter().map(|step| number(step, &["wait_ms", "data"])).collect::<Result<Vec<_>>>()?;
    let rate = (counted.len() * BATCH) as f64 / seconds;
    let step_ms = 1e3 * seconds / counted.len() as f64;
    Ok(suite
        .judged(true, true, "without a goal")
        .with_column("images /s", rate)
        .with_column("ms per step", step_ms)
        .with_column("wait for data, ms", median(&waited).unwrap_or(f64::NAN)))
}
