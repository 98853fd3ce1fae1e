//! Predictions beside the accounting allocator.

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Bench;
use super::cases::CASES;

/// The goals, in percent.
const MEDIAN: f64 = 1.0;
const WORST: f64 = 3.0;

#[derive(Deserialize)]
struct Profile {
    stages: Vec<Stage>,
}

#[derive(Deserialize)]
struct Stage {
    measured: Option<Measured>,
}

#[derive(Deserialize)]
struct Measured {
    peak: u64,
    predicted: Predicted,
}

#[derive(Deserialize)]
struct Predicted {
    peak: u64,
}

/// The peak of the first stage in what `dtrain profile --json` says: measured and predicted, in bytes.
pub(crate) fn profiled(json: &str) -> Result<(u64, u64)> {
    let profile: Profile = serde_json::from_str(json)?;
    let stage = profile.stages.into_iter().next();
    let Measured { peak, predicted } = stage
        .and_then(|stage| stage.measured)
        .context("nothing was measured")?;
    Ok((peak, predicted.peak))
}

/// Profiles every case, prints a table in Markdown, and says whether the goals are met.
pub(super) fn run(bench: &Bench<'_>) -> Result<bool> {
    println!("| Configuration | Measured | Predicted | Error |\n|---|---|---|---|");
    let mut errors = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        let recipe = bench.recipe(&format!("case-{number}"), &case.recipe())?;
        let sets: Vec<String> = case.sets.iter().map(|set| (*set).to_owned()).collect();
        let nproc = case.nproc.to_string();
        let (code, out, err) = bench.dtrain(
            &["profile", "--stage", "all", "--json", "--nproc", &nproc],
            &recipe,
            &sets,
        )?;
        let failed = || format!("{}: exit code {code}\n{err}", case.name);
        let (peak, predicted) = profiled(&out).with_context(failed)?;
        let error = 100.0 * (predicted as f64 / peak as f64 - 1.0);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "| {} | {:.2} MiB | {:.2} MiB | {error:+.2}% |",
            case.name,
            mib(peak),
            mib(predicted)
        );
        errors.push(error.abs());
    }
    errors.sort_by(f64::total_cmp);
    let worst = errors.last().copied().unwrap_or_default();
    let median = errors[errors.len() / 2];
    let met = median <= MEDIAN && worst <= WORST;
    println!(
        "\n{} configurations: median error {median:.2}% (goal {MEDIAN}%), worst {worst:.2}% (goal {WORST}%)",
        errors.len()
    );
    Ok(met)
}
