//! `exported`: compares models of timm, torchvision and Hugging Face, run as exported programs, with PyTorch.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;
use xtask::process::Signals;
use xtask::setup::{self, SetArgs};
use xtask::workspace::Workspace;

use crate::files::{create_empty, read};
use crate::machine::Machine;
use crate::python::environment;
use crate::report::{Goal, Group, Report, Row, Verdict};

/// The script, its models, and the part of `dtrain import` that it calls.
pub(crate) const SCRIPT: &str = "tests/lab/python/exported.py";
const MODELS: &str = "tests/lab/models.toml";
pub(crate) const IMPORT: &str = "launcher/src/import";
pub(crate) const REQUIREMENTS: &str = "tests/lab/python/requirements.txt";

/// The arguments of `exported`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Compare only models whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Measure the time of a step too; use an idle machine
    #[arg(long)]
    speed: bool,
    /// Python with torch 2.11, torchvision, timm, transformers and peft
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

/// What the script tells of one model.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Found {
    name: String,
    nodes: f64,
    operations: f64,
    parameters: f64,
    import_s: f64,
    segments: f64,
    /// `equal`, or the largest relative difference.
    train: Option<serde_json::Value>,
    evaluate: Option<serde_json::Value>,
    recompute: Option<serde_json::Value>,
    bf16: Option<serde_json::Value>,
    train_of: Vec<String>,
    /// The peak of a step in MiB, and the relative error of its prediction.
    memory_mib: f64,
    prediction_error: f64,
    /// The same with all segments recomputed, and its peak relative to that without.
    recompute_error: Option<f64>,
    recompute_memory: Option<f64>,
    /// The time of PyTorch's step divided by that of dtrain's.
    speed: Option<f64>,
    /// The times of a step in seconds.
    eager_s: Option<f64>,
    dtrain_s: Option<f64>,
    /// The same, of the program and of its operations called without it, in turn.
    program_s: Option<f64>,
    direct_s: Option<f64>,
    error: Option<String>,
}

/// Runs the comparison. The exit code is 1 if a model differs in a bit or is slower than in PyTorch.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let python = match &args.python {
        Some(python) => python.clone(),
        None => environment(workspace, signals, "exported-venv", REQUIREMENTS)?,
    };
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
    let mut build = ready.cargo(workspace);
    build.args(["build", "--release", "--package", "dtrain-models", "--example", "exported"]);
    let code = signals.run(&mut build)?.code;
    signals.check()?;
    if code != 0 {
        return Ok(code);
    }
    let work = workspace.target().join("exported");
    create_empty(&work)?;
    let program = ready.build_folder(workspace)?.join("release/examples/exported");
    let mut script = Command::new(&python);
    script.current_dir(workspace.root()).args([SCRIPT, IMPORT]).arg(&program).arg(MODELS).arg(&work);
    script.args(args.only.iter().flat_map(|only| ["--only", only]));
    script.args(args.speed.then_some("--speed"));
    let code = signals.run(&mut script)?.code;
    signals.check()?;
    if code != 0 {
        return Ok(code);
    }
    let lines = read(&work.join("found.jsonl"))?;
    let found = lines.lines().map(|line| serde_json::from_str::<Found>(line).context("the script's output"));
    let rows = found.map(|found| found.map(|found| row(&found))).collect::<Result<Vec<Row>>>()?;
    let mut report = Report::new(
        "cargo xtask exported".to_owned(),
        Machine::describe(Some(workspace), serde_json::Value::Null)?,
    );
    report.groups.push(Group { rows, ..Group::new("Exported models beside PyTorch") });
    report.publish(&work.join("results.json"))
}

fn row(found: &Found) -> Row {
    let row = Row::new(&found.name);
    if found.name.is_empty() {
        return row.with_verdict(Verdict::Failed, "the script wrote no name");
    }
    if let Some(error) = &found.error {
        return row.with_verdict(Verdict::Failed, error);
    }
    let mut row = row
        .with("nodes", found.nodes)
        .with("operations", found.operations)
        .with("million parameters", found.parameters / 1e6)
        .with("import, s", found.import_s)
        .with("segments", found.segments)
        .with("peak, MiB", found.memory_mib)
        .with("prediction, %", 1e2 * found.prediction_error);
    if let (Some(error), Some(memory)) = (found.recompute_error, found.recompute_memory) {
        row = row.with("recompute: prediction, %", 1e2 * error).with("recompute: peak / plain", memory);
    }
    let times = [("PyTorch, ms", found.eager_s), ("dtrain, ms", found.dtrain_s)];
    for (name, seconds) in times.into_iter().filter_map(|(name, seconds)| Some((name, seconds?))) {
        row = row.with(name, 1e3 * seconds);
    }
    if let (Some(program), Some(direct)) = (found.program_s, found.direct_s) {
        row = row.with("overhead per operation, µs", 1e6 * (program - direct) / found.nodes);
    }
    let checks = [
        ("training", &found.train),
        ("evaluation", &found.evaluate),
        ("recompute", &found.recompute),
        ("bfloat16", &found.bf16),
    ];
    let differs = checks.iter().filter_map(|(name, value)| {
        let value = value.as_ref().filter(|value| *value != "equal")?;
        Some(format!("{name} differs by {value}"))
    });
    let mut differences: Vec<String> = differs.collect();
    differences.extend(found.train_of.iter().cloned());
    let row = row.with_verdict(Verdict::of(differences.is_empty()), differences.join(", "));
    match found.speed {
        Some(speed) if differences.is_empty() => {
            row.with("PyTorch / dtrain", speed).with_goal(speed, Some(Goal::AtLeast(1.0)))
        }
        Some(speed) => row.with("PyTorch / dtrain", speed),
        None => row,
    }
}
