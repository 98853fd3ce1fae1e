//! One training under many budgets.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Bench;

/// How far losses may be from those without a budget.
const NEAR: f64 = 1e-4;

/// No BatchNorm and no dropout: the cut changes rounding alone.
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

/// Trains under every budget, prints a line each, and says whether all did what they must.
pub(super) fn run(bench: &Bench<'_>, budgets: u32) -> Result<bool> {
    let recipe = bench.recipe("sweep", RECIPE)?;
    let nproc = 2;
    let train = |name: &str, budget: Option<u64>| -> Result<(i32, Vec<f64>, u64, f64)> {
        let run_dir = bench.work.join(name);
        let folder = run_dir.display().to_string();
        let sets: Vec<String> = budget
            .iter()
            .map(|bytes| format!("memory.budget={bytes}"))
            .collect();
        let nproc = nproc.to_string();
        let begun = Instant::now();
        let (code, _, err) = bench.dtrain(
            &["launch", "--nproc", &nproc, "--run-dir", &folder],
            &recipe,
            &sets,
        )?;
        let took = begun.elapsed().as_secs_f64();
        ensure!(code == 0 || code == 3, "{name}: exit code {code}\n{err}");
        let (mut losses, mut peak) = (Vec::new(), 0);
        if code == 0 {
            let path = run_dir.join("metrics.jsonl");
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            for line in text.lines() {
                let value: Value = serde_json::from_str(line)?;
                if let Some(loss) = value["loss"].as_f64() {
                    losses.push(loss);
                    peak = peak.max(value["memory"]["peak"].as_u64().unwrap_or(0));
                }
            }
            let result = std::fs::read_to_string(run_dir.join("plan.json"))?;
            let plan: Value = serde_json::from_str(&result)?;
            ensure!(
                plan["effective_batch"] == 16,
                "{name}: the effective batch is {}",
                plan["effective_batch"]
            );
        }
        Ok((code, losses, peak, took))
    };
    let (code, losses, ample, _) = train("ample", None)?;
    ensure!(code == 0, "the run without a budget ends with {code}");
    println!("without a budget: {:.2} MiB per rank", mib(ample));
    let (mut trained, mut refused, mut met, mut worst) = (0, 0, true, 0f64);
    for number in 0..budgets {
        // From a twentieth of what it takes to a tenth more.
        let share = 0.05 + 1.05 * f64::from(number) / f64::from(budgets - 1);
        let budget = (ample as f64 * share) as u64;
        let (code, own, peak, took) = train(&format!("budget-{number}"), Some(budget))?;
        let differ = |(a, b): (&f64, &f64)| (a - b).abs();
        let difference = losses.iter().zip(&own).map(differ).fold(0.0, f64::max);
        let said = match code {
            0 => {
                trained += 1;
                worst = worst.max(difference);
                let fine = own.len() == losses.len() && difference <= NEAR && peak <= budget;
                met &= fine;
                format!(
                    "trains in {:.2} MiB, losses within {difference:.1e}{}",
                    mib(peak),
                    if fine { "" } else { "  MISSED" }
                )
            }
            _ => {
                refused += 1;
                "exit code 3".to_owned()
            }
        };
        println!("budget {:7.2} MiB: {said} ({took:.1} s)", mib(budget));
    }
    println!(
        "\n{budgets} budgets: {trained} train with the exact effective batch, losses within {worst:.1e} (goal {NEAR:e}); {refused} \
         end with exit code 3; no other end"
    );
    Ok(met && trained > 0 && refused > 0)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
