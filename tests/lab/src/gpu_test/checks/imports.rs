//! Compares a model of timm, imported by `dtrain import`, with itself in PyTorch.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Check, check};
use crate::files;
use crate::gpu_test::bench::{Here, Images, NOT_HERE, images, last_line};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::suite::{Suite, Training};
use crate::stats::median;

const MODEL: &str = "timm:vit_small_patch16_224";

/// Width and height of the images.
const SIDE: usize = 96;

/// Steps whose losses are compared. Each takes all images: their order does not matter.
const COMPARED: usize = 10;

/// Images of the comparison.
const IMAGES: usize = 64;

/// The largest relative difference of losses in float32.
const TOLERANCE: f64 = 1e-3;

/// Steps whose time is measured, after a third of them.
const TIMED: usize = 60;

pub(in crate::gpu_test) fn checks() -> Vec<Check> {
    vec![
        check("ViT-S/16 of timm, float32: losses", 40, compare_losses),
        check("ViT-S/16 of timm, bfloat16: speed", 20, compare_speed),
    ]
}

fn compare_losses(suite: &Suite<'_>) -> Result<Finding> {
    let root =
        images(&suite.work, &Images { name: "import-images", count: IMAGES, classes: 10, side: SIDE })?;
    let file = match import(suite)? {
        Ok(file) => file,
        Err(reason) => return Ok(Finding::skipped(reason)),
    };
    let more = ["--steps", &COMPARED.to_string(), "--losses", &root.display().to_string()];
    let theirs = match pytorch(suite, &file, &more)? {
        Ok(value) => value,
        Err(reason) => return Ok(Finding::skipped(reason)),
    };
    let theirs: Vec<f64> = serde_json::from_value(theirs["losses"].clone())?;
    let sets = ["precision.amp=\"off\"", "precision.tf32=false"];
    let ours = train(suite, &file, &root, (IMAGES, COMPARED), &sets)?.per_step("loss")?;
    ensure!(ours.len() == theirs.len(), "{} steps against {}", ours.len(), theirs.len());
    let off = ours.iter().zip(&theirs).map(|(ours, theirs)| (ours / theirs - 1.0).abs());
    // NaN counts as the largest difference.
    let most = off.fold(0.0, |most: f64, next| if most.is_nan() || next <= most { most } else { next });
    let note =
        format!("losses of {COMPARED} steps differ by at most {most:.1e} of their value, goal {TOLERANCE:e}");
    Ok(suite.judged(true, most <= TOLERANCE, note).with_column("difference", most))
}

fn compare_speed(suite: &Suite<'_>) -> Result<Finding> {
    const BATCH: usize = 256;
    let root = images(&suite.work, &Images { name: "import-many", count: 1024, classes: 10, side: 32 })?;
    let file = match import(suite)? {
        Ok(file) => file,
        Err(reason) => return Ok(Finding::skipped(reason)),
    };
    let mut rates = [Vec::new(), Vec::new()];
    while rates[0].len() < 2 && !suite.is_late() {
        let theirs =
            match pytorch(suite, &file, &["--steps", &TIMED.to_string(), "--batch", &BATCH.to_string()])? {
                Ok(value) => value,
                Err(reason) => return Ok(Finding::skipped(reason)),
            };
        let run = train(suite, &file, &root, (BATCH, TIMED), &["precision.amp=\"bf16\""])?;
        let ended = run.per_step("elapsed_s")?;
        let warm = TIMED / 3;
        let seconds = ended[TIMED - 1] - ended[warm - 1];
        rates[0].push((TIMED - warm) as f64 * BATCH as f64 / seconds);
        rates[1].push(theirs["per_second"].as_f64().context("imported.py has no per_second")?);
    }
    let (Some(ours), Some(theirs)) = (median(&rates[0]), median(&rates[1])) else {
        return Ok(Finding::skipped("not reached"));
    };
    let note = format!("{} round(s), batch {BATCH}, images of {SIDE} pixels", rates[0].len());
    Ok(suite
        .judged(true, true, note)
        .with_column("dtrain /s", ours)
        .with_column("eager /s", theirs)
        .with_column("dtrain / eager", ours / theirs))
}

/// Starts the import: PyTorch's comparison takes a minute of a CPU. If it fails, the check repeats it.
pub(in crate::gpu_test) fn import_in_background(suite: &Suite<'_>) -> Result<()> {
    if let Some(mut import) = import_command(suite) {
        let started = suite.start(&mut import)?;
        suite.background.borrow_mut().push(started);
    }
    Ok(())
}

fn file(suite: &Suite<'_>) -> PathBuf {
    suite.work.join("imported.pt2")
}

/// Returns the command of the import; `None` without a Python.
fn import_command(suite: &Suite<'_>) -> Option<Command> {
    let mut import = suite.program("dtrain");
    import.args(["import", MODEL, "--classes", "10", "--image-size", &SIDE.to_string(), "--force", "-o"]);
    import.arg(file(suite)).env("PYTHON_EXEC", suite.python.as_ref()?);
    Some(import)
}

/// Imports the model unless it is there.
fn import(suite: &Suite<'_>) -> Result<Here<PathBuf>> {
    let file = file(suite);
    let Some(mut import) = import_command(suite) else {
        return Ok(Err("no Python with PyTorch and timm".to_owned()));
    };
    if !file.exists() {
        let ended = suite.run(&mut import)?;
        if ended.stderr.contains("the package timm cannot be imported")
            || ended.stderr.contains("has no package timm")
        {
            return Ok(Err(last_line(&ended.stderr)));
        }
        ended.expect(0)?;
    }
    Ok(Ok(file))
}

fn pytorch(suite: &Suite<'_>, file: &Path, more: &[&str]) -> Result<Here<Value>> {
    let Some(python) = &suite.python else { return Ok(Err("no Python".to_owned())) };
    let out = suite.work.join("imported.json");
    let mut command = Command::new(python);
    command.current_dir(&suite.work).env("PYTHONDONTWRITEBYTECODE", "1").stdin(std::process::Stdio::null());
    command.arg(suite.bench.join("imported.py")).arg(MODEL.trim_start_matches("timm:")).arg(file);
    command.args(["--side", &SIDE.to_string(), "--out"]).arg(&out).args(more);
    let ended = suite.run(&mut command)?;
    if ended.code == NOT_HERE {
        return Ok(Err(last_line(&ended.stderr)));
    }
    ended.expect(0)?;
    Ok(Ok(serde_json::from_str(&files::read(&out)?)?))
}

fn train(
    suite: &Suite<'_>,
    file: &Path,
    root: &Path,
    (batch, steps): (usize, usize),
    sets: &[&str],
) -> Result<crate::gpu_test::suite::Trained> {
    let recipe = format!(
        "task = \"classify\"\n[data]\nroot = {root:?}\nimage_size = {SIDE}\ncache = \"1 GiB\"\n[model]\nfile = {file:?}\n[train]\n\
         effective_batch = {batch}\nsteps = {steps}\nlast_batch = \"drop\"\n[optim]\nname = \"sgd\"\nlr = 0.01\nschedule = {{ name = \
         \"constant\" }}\n[memory]\nmicro_batch = {batch}\nrecompute = \"off\"\n[checkpoint]\nevery = \"1000000 steps\"\n[log]\n\
         every_steps = 1000\n"
    );
    let name = format!("imported-{batch}");
    let run = suite.run_dir(&name);
    // A second round would resume.
    if run.root().exists() {
        fs::remove_dir_all(run.root()).with_context(|| format!("cannot remove {}", run.root().display()))?;
    }
    suite.train(&Training { name: &name, recipe: &recipe, ranks: 1, sets, vars: &[] })
}
