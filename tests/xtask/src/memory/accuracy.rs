//! Predictions beside the accounting allocator.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::Bench;
use super::cases::{CASES, Case, UNTUNED};

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

/// Profiles every case, prints a table in Markdown for those that rules were made for and one for others, and says whether the goals
/// are met.
pub(super) fn run(bench: &Bench<'_>, python: Option<&Path>) -> Result<bool> {
    let mut met = table(bench, CASES)?;
    let names: Vec<&str> = UNTUNED.iter().filter_map(Case::script).collect();
    match python {
        Some(python) => {
            let mut script = Command::new(python);
            script.arg(bench.scripts).arg(&bench.work).args(names);
            let code = bench.signals.run(&mut script)?.code;
            ensure!(code == 0, "{} ended with code {code}", python.display());
            println!("\nNetworks that no rule was made for:\n");
            met &= table(bench, UNTUNED)?;
        }
        None => eprintln!(
            "networks of torchvision are left out: give --python one with torch 2.11 and torchvision"
        ),
    }
    Ok(met)
}

/// The cases, and the errors' median and greatest. One that fails hides no other.
fn table(bench: &Bench<'_>, cases: &[Case]) -> Result<bool> {
    println!("| Configuration | Measured | Predicted | Error |\n|---|---|---|---|");
    let mut errors = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        bench.signals.check()?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        match profile(bench, number, case) {
            Ok((peak, predicted)) => {
                let error = 100.0 * (predicted as f64 / peak as f64 - 1.0);
                println!(
                    "| {} | {:.2} MiB | {:.2} MiB | {error:+.2}% |",
                    case.name,
                    mib(peak),
                    mib(predicted)
                );
                errors.push(error.abs());
            }
            Err(error) => {
                println!("| {} | failed | | |", case.name);
                eprintln!("{error:#}");
                errors.push(f64::INFINITY);
            }
        }
    }
    errors.sort_by(f64::total_cmp);
    let worst = errors.last().copied().unwrap_or_default();
    let median = errors[errors.len() / 2];
    println!(
        "\n{} configurations: median error {median:.2}% (goal {MEDIAN}%), worst {worst:.2}% (goal {WORST}%)",
        errors.len()
    );
    Ok(median <= MEDIAN && worst <= WORST)
}

/// Its peak in bytes, measured and predicted.
fn profile(bench: &Bench<'_>, number: usize, case: &Case) -> Result<(u64, u64)> {
    let recipe = bench.recipe(&format!("case-{number}"), &case.recipe(&bench.work))?;
    let sets: Vec<String> = case.sets.iter().map(|set| (*set).to_owned()).collect();
    let nproc = case.nproc.to_string();
    let (code, out, err) = bench.dtrain(
        &["profile", "--stage", "all", "--json", "--nproc", &nproc],
        &recipe,
        &sets,
    )?;
    profiled(&out).with_context(|| format!("{}: exit code {code}\n{err}", case.name))
}
