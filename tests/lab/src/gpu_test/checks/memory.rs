//! Checks predictions, and an allocator with a limit.

use anyhow::{Context, Result, ensure};

use super::recipes::LARGE;
use super::training::largest_difference;
use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::suite::{Suite, Trained, Training};
use crate::memory::{CASES, Case, mib, profiled};

/// The goals for predictions in percent, as on the CPU.
const MEDIAN: f64 = 1.0;
const WORST: f64 = 3.0;

/// Large enough that libraries' workspaces are a small part of a step's memory.
const BATCH: [&str; 2] = ["train.effective_batch=32", "data.train_samples=64"];

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("predictions", 420, compare_predictions),
        check("allocator limit: the step is repeated", 40, check_retry),
        check("allocator limit: the cut fits it", 40, check_chosen_cut),
        check("allocator limit: nothing fits", 20, check_small_budget),
    ]
}

fn compare_predictions(suite: &Suite<'_>) -> Result<Finding> {
    let errors = CASES
        .iter()
        .filter(|case| !lacks_copies(suite, case))
        .map(|case| {
            let error = prediction_error(suite, case);
            // If the user stopped it, this is no finding.
            suite.signals.check()?;
            Ok((case.name, error))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(judged(&errors))
}

/// Compares the errors of predictions, in percent, with the goals. A failed one does not hide the others.
fn judged(errors: &[(&str, Result<f64>)]) -> Finding {
    let mut known: Vec<(&str, f64)> =
        errors.iter().filter_map(|(name, error)| Some((*name, *error.as_ref().ok()?))).collect();
    known.sort_by(|(_, one), (_, other)| one.abs().total_cmp(&other.abs()));
    let mut note = match (known.get(known.len() / 2), known.last()) {
        (Some((_, median)), Some((name, worst))) => format!(
            "{} configurations: median error {:.2}% (goal {MEDIAN}%), worst {worst:+.2}%, of {name} (goal {WORST}%)",
            known.len(),
            median.abs()
        ),
        _ => "no measurements".to_owned(),
    };
    for (name, error) in errors {
        if let Err(error) = error {
            note += &format!("; {name} failed: {error:#}");
        }
    }
    let median = known.get(known.len() / 2).map_or(f64::INFINITY, |(_, error)| error.abs());
    let worst = known.last().map_or(f64::INFINITY, |(_, error)| error.abs());
    let met = known.len() == errors.len() && median <= MEDIAN && worst <= WORST;
    let finding =
        known.iter().fold(Finding::judged(met, note), |finding, (name, error)| finding.with(*name, *error));
    match known.is_empty() {
        true => finding,
        false => finding.with("median", median).with("worst", worst),
    }
}

/// Those of the first hour: each network once, and then the settings that change most.
const FIRST: [&str; 10] = [
    "ResNet-50",
    "GPT",
    "ViT",
    "U-Net",
    "ResNet-18",
    "GPT, bf16",
    "ViT, bf16",
    "GPT, recompute",
    "ResNet-50, recompute, bf16",
    "U-Net, bf16",
];

/// Returns a check for each prediction of the first hour.
pub(in crate::gpu_test) fn first_predictions() -> Vec<Check> {
    let cases = FIRST.iter().filter_map(|name| CASES.iter().find(|case| case.name == *name));
    cases
        .map(|case| Check {
            name: case.name.to_owned(),
            seconds: 10,
            run: Box::new(|suite| check_prediction(suite, case)),
        })
        .collect()
}

fn check_prediction(suite: &Suite<'_>, case: &Case) -> Result<Finding> {
    let (measured, predicted) = measure(suite, case)?;
    let error = percent(measured, predicted);
    let note = format!("error {error:+.2}%, goal {WORST}%");
    let finding = match lacks_copies(suite, case) && error > 0.0 {
        true => {
            Finding::skipped(format!("the cuDNN of fake GPUs takes none of the predicted copies: {note}"))
        }
        false => Finding::judged(error.abs() <= WORST, note),
    };
    Ok(finding
        .with_column("measured, MiB", mib(measured))
        .with_column("predicted, MiB", mib(predicted))
        .with_column("error, %", error))
}

/// Returns whether a case cannot be compared: the cuDNN of fake GPUs takes no memory.
fn lacks_copies(suite: &Suite<'_>, case: &Case) -> bool {
    suite.is_fake && case.assumes_copies()
}

fn percent(measured: u64, predicted: u64) -> f64 {
    100.0 * (predicted as f64 / measured as f64 - 1.0)
}

/// Returns the error of a prediction, in percent of the measurement.
fn prediction_error(suite: &Suite<'_>, case: &Case) -> Result<f64> {
    let (measured, predicted) = measure(suite, case)?;
    Ok(percent(measured, predicted))
}

/// Returns the bytes of a step's peak, measured and predicted.
fn measure(suite: &Suite<'_>, case: &Case) -> Result<(u64, u64)> {
    let recipe = suite.write("profile.toml", &case.recipe())?;
    let mut command = suite.program("dtrain");
    command.args(["profile", "--stage", "all", "--json", "--nproc", &case.nproc.to_string()]);
    for set in BATCH.iter().chain(case.sets) {
        command.args(["--set", set]);
    }
    let ended = suite.run(command.arg(recipe))?.expect(0)?;
    let profile: serde_json::Value = serde_json::from_str(&ended.stdout)?;
    let device = profile["device"].as_str().unwrap_or("an unknown device");
    ensure!(device.starts_with("GPU "), "profiled on {device}, expected a GPU");
    suite.proofs.add(device);
    profiled(&ended.stdout)
}

fn training<'a>(name: &'a str, sets: &'a [&'a str]) -> Training<'a> {
    Training { name, recipe: LARGE, ranks: 1, sets, vars: &[] }
}

/// Runs a training without a limit; returns its peak in bytes.
fn free(suite: &Suite<'_>, name: &str) -> Result<(Trained, u64)> {
    let free = suite.train(&training(name, &[]))?;
    let peak = free.result["peak_memory_bytes"][0].as_u64().context("no peak memory")?;
    Ok((free, peak))
}

fn reserved(run: &Trained) -> f64 {
    let of = |step: &serde_json::Value| step["memory"]["reserved"].as_f64().unwrap_or(f64::INFINITY);
    run.steps.iter().map(of).fold(0.0, f64::max)
}

/// Trains with a fixed micro-batch, so that the first step does not fit.
fn check_retry(suite: &Suite<'_>) -> Result<Finding> {
    let (free, peak) = free(suite, "limitless")?;
    let budget = format!("memory.budget={}", peak / 10 * 6);
    let limited = suite.train(&training("limited", &[&budget]))?;
    let most = largest_difference(&free, &limited, "loss")?;
    let replays = limited.result["oom_replays"].as_u64().unwrap_or_default();
    let micro_batch = limited.result["micro_batch"].as_u64().unwrap_or_default();
    let held = reserved(&limited) <= peak as f64 * 0.6 + 1.0;
    Ok(suite.judged(
        replays > 0 && micro_batch < 64 && held, most <= 1e-4,
        format!(
            "limit {1} of {0} MiB: {replays} repeated step(s), micro-batches of {micro_batch}, losses differ by at most \
             {most:.1e}, {2:.0} MiB reserved",
            peak >> 20,
            (peak / 10 * 6) >> 20,
            reserved(&limited) / f64::from(1 << 20)
        ),
    )
    .with("replays", replays as f64)
    .with("most", most))
}

fn check_chosen_cut(suite: &Suite<'_>) -> Result<Finding> {
    let (free, peak) = free(suite, "limitless-too")?;
    let budget = format!("memory.budget={}", peak / 10 * 6);
    let sets = [&budget, "memory.micro_batch=auto"];
    let limited = suite.train(&training("chosen", &sets))?;
    let most = largest_difference(&free, &limited, "loss")?;
    let replays = limited.result["oom_replays"].as_u64().unwrap_or_default();
    let micro_batch = limited.result["micro_batch"].as_u64().unwrap_or_default();
    Ok(suite.judged(
        replays == 0, most <= 1e-4,
        format!(
            "micro-batches of {micro_batch}, {replays} repeated step(s), losses differ by at most {most:.1e}"
        ),
    )
    .with("micro_batch", micro_batch as f64))
}

fn check_small_budget(suite: &Suite<'_>) -> Result<Finding> {
    let ended = suite
        .try_training(&training("hopeless", &["memory.budget=200 MiB", "memory.micro_batch=1"]))?
        .expect(3)?
        .expect_stderr("out of memory")?
        // Without room for the model, no line names the devices of the training.
        .expect_stderr("of the GPU's")?;
    suite.proofs.add("a GPU without room for the model");
    let last = ended.stderr.lines().find(|line| line.contains("out of memory")).unwrap_or_default();
    Ok(Finding::passed(format!("exit code 3: `{last}`")))
}
