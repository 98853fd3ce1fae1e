//! Predictions, and an allocator that refuses.

use anyhow::{Context, Result};

use super::recipes::LARGE;
use super::training::apart;
use super::{Check, check};
use crate::gpu_test::report::Finding;
use crate::gpu_test::site::{Site, Trained, Training};
use crate::memory::{CASES, Case, profiled};

/// The goals for predictions, in percent: those on the CPU.
const MEDIAN: f64 = 1.0;
const WORST: f64 = 3.0;

/// So large that a step is not mostly the libraries' workspaces.
const BATCH: [&str; 2] = ["train.effective_batch=32", "data.train_samples=64"];

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("predictions", predictions),
        check("a limit of the allocator: the step is taken again", replay),
        check("a limit of the allocator: the cut is chosen for it", chosen),
        check("a limit of the allocator: nothing fits", hopeless),
    ]
}

fn predictions(site: &Site<'_>) -> Result<Finding> {
    let mut found = Finding::passed("");
    let mut errors = Vec::new();
    for case in CASES {
        let error = predicted(site, case).with_context(|| case.name.to_owned())?;
        found = found.with(case.name, error);
        errors.push(error.abs());
    }
    errors.sort_by(f64::total_cmp);
    let (median, worst) = (errors[errors.len() / 2], errors[errors.len() - 1]);
    let note = format!(
        "{} configurations: median error {median:.2}% (goal {MEDIAN}%), worst {worst:.2}% (goal {WORST}%)",
        errors.len()
    );
    Ok(Finding {
        figures: found.with("median", median).with("worst", worst).figures,
        ..Finding::judged(median <= MEDIAN && worst <= WORST, note)
    })
}

/// The error of a prediction, in percent of what was measured.
fn predicted(site: &Site<'_>, case: &Case) -> Result<f64> {
    let recipe = site.write("profile.toml", &case.recipe())?;
    let mut command = site.program("dtrain");
    command.args([
        "profile",
        "--stage",
        "all",
        "--json",
        "--nproc",
        &case.nproc.to_string(),
    ]);
    for set in BATCH.iter().chain(case.sets) {
        command.args(["--set", set]);
    }
    let ended = site.run(command.arg(recipe))?.expect(0)?;
    let (measured, predicted) = profiled(&ended.stdout)?;
    Ok(100.0 * (predicted as f64 / measured as f64 - 1.0))
}

fn training<'a>(name: &'a str, sets: &'a [&'a str]) -> Training<'a> {
    Training {
        name,
        recipe: LARGE,
        ranks: 1,
        sets,
        vars: &[],
    }
}

/// What a training without a limit takes at most, in bytes.
fn free(site: &Site<'_>, name: &str) -> Result<(Trained, u64)> {
    let free = site.train(&training(name, &[]))?;
    let peak = free.result["peak_memory_bytes"][0]
        .as_u64()
        .context("no peak memory")?;
    Ok((free, peak))
}

fn reserved(run: &Trained) -> f64 {
    let of = |step: &serde_json::Value| step["memory"]["reserved"].as_f64().unwrap_or(f64::INFINITY);
    run.steps.iter().map(of).fold(0.0, f64::max)
}

/// The micro-batch is stated, so that the first step does not fit.
fn replay(site: &Site<'_>) -> Result<Finding> {
    let (free, peak) = free(site, "limitless")?;
    let budget = format!("memory.budget={}", peak / 10 * 6);
    let limited = site.train(&training("limited", &[&budget]))?;
    let most = apart(&free, &limited, "loss")?;
    let replays = limited.result["oom_replays"].as_u64().unwrap_or_default();
    let micro_batch = limited.result["micro_batch"].as_u64().unwrap_or_default();
    let held = reserved(&limited) <= peak as f64 * 0.6 + 1.0;
    Ok(Finding::judged(
        replays > 0 && micro_batch < 64 && most <= 1e-4 && held,
        format!(
            "of {} MiB {} were allowed: {replays} step(s) taken again, micro-batches of {micro_batch}, losses differ by at most \
             {most:.1e}, {:.0} MiB reserved",
            peak >> 20,
            (peak / 10 * 6) >> 20,
            reserved(&limited) / f64::from(1 << 20)
        ),
    )
    .with("replays", replays as f64)
    .with("most", most))
}

fn chosen(site: &Site<'_>) -> Result<Finding> {
    let (free, peak) = free(site, "limitless-too")?;
    let budget = format!("memory.budget={}", peak / 10 * 6);
    let sets = [&budget, "memory.micro_batch=auto"];
    let limited = site.train(&training("chosen", &sets))?;
    let most = apart(&free, &limited, "loss")?;
    let replays = limited.result["oom_replays"].as_u64().unwrap_or_default();
    let micro_batch = limited.result["micro_batch"].as_u64().unwrap_or_default();
    Ok(Finding::judged(
        replays == 0 && most <= 1e-4,
        format!("micro-batches of {micro_batch}, {replays} step(s) taken again, losses differ by at most {most:.1e}"),
    )
    .with("micro_batch", micro_batch as f64))
}

fn hopeless(site: &Site<'_>) -> Result<Finding> {
    let ended = site
        .try_training(&training(
            "hopeless",
            &["memory.budget=200 MiB", "memory.micro_batch=1"],
        ))?
        .expect(3)?
        .says("out of memory")?;
    let last = ended
        .stderr
        .lines()
        .find(|line| line.contains("out of memory"))
        .unwrap_or_default();
    Ok(Finding::passed(format!("exit code 3: `{last}`")))
}
