//! Trains with many budgets.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use dtrain_common::run_dir::RunDir;
use serde_json::Value;

use super::Bench;
use super::accuracy::mib;
use crate::report::{Group, Row, Verdict};

/// The largest difference between losses with and without a budget.
const TOLERANCE: f64 = 1e-4;

/// No BatchNorm and no dropout: the cut changes only rounding.
const RECIPE: &str = "\
task = \"lm\"
[data]
kind = \"generated\"
train_samples = 64
test_samples = 8
[model]
name = \"gpt\"
width = 128
depth = 4
heads = 4
context = 64
[train]
effective_batch = 16
steps = 4
seed = 3
[optim]
name = \"adamw\"
lr = 1e-3
[precision]
amp = \"off\"
";

/// The result of a training under a budget.
struct Trained {
    code: u8,
    losses: Vec<f64>,
    peak: u64,
    seconds: f64,
}

/// Trains with every budget: each training must have the losses without a budget, or end with exit code 3.
pub(super) fn run(bench: &Bench<'_>, budgets: u32) -> Result<Group> {
    let recipe = bench.recipe("sweep", RECIPE)?;
    let unlimited = train(bench, &recipe, "unlimited", None)?;
    ensure!(unlimited.code == 0, "the run without a budget ended with exit code {}", unlimited.code);
    let mut group = Group::new("one training under many budgets");
    group.rows.push(Row::new("no budget").with("peak, MiB", mib(unlimited.peak)));
    let (mut trained, mut too_small) = (0, 0);
    for number in 0..budgets {
        // From 5 % to 110 % of the peak without a budget.
        let share = 0.05 + 1.05 * f64::from(number) / f64::from(budgets - 1);
        let budget = (unlimited.peak as f64 * share) as u64;
        let own = train(bench, &recipe, &format!("budget-{number}"), Some(budget))?;
        let row = Row::new(format!("budget of {:.2} MiB", mib(budget))).with("seconds", own.seconds);
        let row = if own.code == 0 {
            trained += 1;
            let difference =
                unlimited.losses.iter().zip(&own.losses).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            let fine =
                own.losses.len() == unlimited.losses.len() && difference <= TOLERANCE && own.peak <= budget;
            let row = row.with("peak, MiB", mib(own.peak)).with("loss difference", difference);
            row.with_verdict(Verdict::of(fine), "trained")
        } else {
            too_small += 1;
            row.with_verdict(Verdict::Passed, "exit code 3")
        };
        eprintln!("{}: {}", row.name, row.note);
        group.rows.push(row);
    }
    let both = trained > 0 && too_small > 0;
    let note =
        format!("{trained} trained with the exact effective batch, {too_small} ended with exit code 3");
    group.rows.push(Row::new(format!("{budgets} budgets")).with_verdict(Verdict::of(both), note));
    Ok(group)
}

fn train(bench: &Bench<'_>, recipe: &Path, name: &str, budget: Option<u64>) -> Result<Trained> {
    let run = RunDir::new(bench.work.join(name));
    let folder = run.root().display().to_string();
    let sets: Vec<String> = budget.iter().map(|bytes| format!("memory.budget={bytes}")).collect();
    let ended = bench.dtrain(&["launch", "--nproc", "2", "--run-dir", &folder], recipe, &sets)?;
    ensure!(ended.code == 0 || ended.code == 3, "{name}: exit code {}\n{}", ended.code, ended.stderr);
    let (mut losses, mut peak) = (Vec::new(), 0);
    if ended.code == 0 {
        let read = |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
        for step in xtask::metrics::steps(&read(&run.metrics())?)? {
            losses.extend(step["loss"].as_f64());
            peak = peak.max(step["memory"]["peak"].as_u64().unwrap_or(0));
        }
        let plan: Value = serde_json::from_str(&read(&run.plan())?)?;
        let batch = &plan["effective_batch"];
        ensure!(*batch == 16, "{name}: the effective batch is {batch}");
    }
    Ok(Trained { code: ended.code, losses, peak, seconds: ended.took.as_secs_f64() })
}
