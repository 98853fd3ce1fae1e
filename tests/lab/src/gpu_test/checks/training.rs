//! Trains the same recipe in every way and compares.

use anyhow::{Context, Result, ensure};

use super::recipes::{LM, RESNET};
use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::site::{Site, Trained, Training};

/// The largest difference between losses of two partitions in float32, in the first steps.
const PARTITION: f64 = 1e-4;

/// The same between the CPU's and the GPU's kernels.
const DEVICES: f64 = 1e-3;

pub(super) fn checks() -> Vec<Check> {
    vec![
        check("the partition does not matter", 90, partition),
        check("the CPU computes the same", 40, devices),
        check("statistics of all ranks together", 40, synced),
        check("reduced behind backward or beside it", 30, overlap),
        check("float16 with its loss scale", 20, half),
        check("bfloat16 learns as float32 does", 30, bfloat),
        check("segments computed again", 30, recompute),
        check("a run that resumes", 40, resumed),
        check("fewer GPUs than asked for", 30, fallback),
    ]
}

fn training<'a>(name: &'a str, recipe: &'a str, ranks: usize, sets: &'a [&'a str]) -> Training<'a> {
    Training { name, recipe, ranks, sets, vars: &[] }
}

/// Returns the largest difference of a figure over the steps.
pub(super) fn apart(one: &Trained, other: &Trained, figure: &str) -> Result<f64> {
    greatest(one, other, figure, |a, b| (a - b).abs())
}

/// Returns how far two trainings differ: the larger of the largest absolute difference of losses and the
/// largest relative difference of gradient norms. Rounding is relative to a norm's size.
pub(super) fn diverged(one: &Trained, other: &Trained) -> Result<f64> {
    let norms = greatest(one, other, "grad_norm", |a, b| {
        let size = f64::max(a.abs(), b.abs());
        if size > 0.0 { (a - b).abs() / size } else { (a - b).abs() }
    })?;
    let losses = apart(one, other, "loss")?;
    Ok(if norms.is_nan() || norms > losses { norms } else { losses })
}

fn greatest(
    one: &Trained,
    other: &Trained,
    figure: &str,
    difference: impl Fn(f64, f64) -> f64,
) -> Result<f64> {
    let (one, other) = (one.per_step(figure)?, other.per_step(figure)?);
    ensure!(one.len() == other.len() && !one.is_empty(), "{} steps against {}", one.len(), other.len());
    let differences = one.iter().zip(&other).map(|(a, b)| difference(*a, *b));
    // NaN counts as the largest difference.
    Ok(differences.fold(0.0, |most: f64, next| if most.is_nan() || next <= most { most } else { next }))
}

fn partition(site: &Site<'_>) -> Result<Finding> {
    let whole = site.train(&training("whole", LM, 1, &[]))?;
    let mut most = 0f64;
    let mut found = Finding::passed("");
    for (name, ranks, sets) in [
        ("micro-batches-of-5", 1, &["memory.micro_batch=5"][..]),
        ("micro-batches-of-1", 1, &["memory.micro_batch=1"]),
        ("two-ranks", 2, &["memory.micro_batch=12"]),
        ("three-ranks", 3, &["memory.micro_batch=3"]),
        ("two-ranks-sharded", 2, &["memory.micro_batch=12", "memory.shard_optimizer=true"]),
    ] {
        let cut = site.train(&training(name, LM, ranks, sets))?;
        let difference = apart(&whole, &cut, "loss")?;
        found = found.with(name, difference);
        most = most.max(difference);
    }
    let note = format!("losses of 20 steps differ by at most {most:.1e}, goal {PARTITION:e}");
    Ok(Finding { figures: found.figures, ..Finding::judged(most <= PARTITION, note) })
}

fn devices(site: &Site<'_>) -> Result<Finding> {
    let on_gpu = site.train(&training("on-gpu", LM, 1, &[]))?;
    let on_cpu = Training { vars: &[("CUDA_VISIBLE_DEVICES", "")], ..training("on-cpu", LM, 1, &[]) };
    let on_cpu = site.train(&on_cpu)?;
    let most = apart(&on_gpu, &on_cpu, "loss")?;
    let note = format!("losses of 20 steps differ by at most {most:.1e}, goal {DEVICES:e}");
    Ok(Finding::judged(most <= DEVICES, note).with("most", most))
}

fn synced(site: &Site<'_>) -> Result<Finding> {
    let one = site.train(&training("resnet-one", RESNET, 1, &["model.batchnorm=synced"]))?;
    let two =
        site.train(&training("resnet-two", RESNET, 2, &["model.batchnorm=synced", "memory.micro_batch=8"]))?;
    let most = apart(&one, &two, "loss")?;
    let note =
        format!("losses of a ResNet on 1 rank and on 2 differ by at most {most:.1e}, goal {DEVICES:e}");
    Ok(Finding::judged(most <= DEVICES, note).with("most", most))
}

fn overlap(site: &Site<'_>) -> Result<Finding> {
    let sets =
        |overlap| ["memory.micro_batch=6", overlap, "reduce.first_bucket=4 KiB", "reduce.bucket=64 KiB"];
    let beside = site.train(&training("overlap", LM, 2, &sets("reduce.overlap=true")))?;
    let behind = site.train(&training("no-overlap", LM, 2, &sets("reduce.overlap=false")))?;
    let most = diverged(&beside, &behind)?;
    // Kernels with atomic additions sum in any order.
    let note = format!("losses and norms differ by at most {most:.1e}, goal 1e-5");
    Ok(Finding::judged(most <= 1e-5, note).with("most", most))
}

/// Checks that a scale that overflows at first is halved with every skipped step, and at no other time.
fn half(site: &Site<'_>) -> Result<Finding> {
    // 2^40: far above the largest float16.
    let sets = ["precision.amp=fp16", "precision.loss_scale=1099511627776", "train.steps=60"];
    let recipe = LM.replace("tf32 = false\n", "");
    let run = site.train(&training("fp16", &recipe, 1, &sets))?;
    let scales = run.per_step("loss_scale")?;
    let skipped: Vec<bool> = run.steps.iter().map(|step| step["skipped"] == true).collect();
    for (at, pair) in scales.windows(2).enumerate() {
        let expected = if skipped[at] { pair[0] / 2.0 } else { pair[0] };
        ensure!(
            pair[1] == expected,
            "the scale goes from {} to {} behind step {}, which was {}",
            pair[0],
            pair[1],
            at + 1,
            if skipped[at] { "left out" } else { "taken" }
        );
    }
    let out = skipped.iter().filter(|&&skipped| skipped).count();
    let losses = run.per_step("loss")?;
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    Ok(Finding::judged(
        out > 0 && last < first,
        format!(
            "{out} of {} steps were left out, the scale fell to {:e}, and the loss from {first:.3} to {last:.3}",
            scales.len(),
            scales[scales.len() - 1]
        ),
    )
    .with("left_out", out as f64))
}

fn bfloat(site: &Site<'_>) -> Result<Finding> {
    let recipe = LM.replace("tf32 = false\n", "");
    let full = site.train(&training("fp32", LM, 1, &["train.steps=60"]))?;
    let short = site.train(&training("bf16", &recipe, 1, &["train.steps=60", "precision.amp=bf16"]))?;
    let ends = [full.per_step("loss")?, short.per_step("loss")?].map(|losses| losses[losses.len() - 1]);
    let off = (ends[1] / ends[0] - 1.0).abs();
    let note = format!("after 60 steps {:.3} in float32 and {:.3} in bfloat16", ends[0], ends[1]);
    Ok(Finding::judged(off < 0.05, note).with("relative", off))
}

fn recompute(site: &Site<'_>) -> Result<Finding> {
    let plain = site.train(&training("recompute-off", LM, 1, &[]))?;
    let again = site.train(&training("recompute-on", LM, 1, &["memory.recompute=on"]))?;
    let most = diverged(&plain, &again)?;
    let peak = |run: &Trained| run.result["peak_memory_bytes"][0].as_f64().context("no peak memory");
    let saved = peak(&plain)? / peak(&again)?;
    let note =
        format!("losses and norms differ by at most {most:.1e}, goal 1e-5; {saved:.2} times less memory");
    Ok(Finding::judged(most <= 1e-5 && saved > 1.0, note).with("most", most).with("saved", saved))
}

fn resumed(site: &Site<'_>) -> Result<Finding> {
    let whole = site.train(&training("uninterrupted", LM, 1, &["train.steps=12"]))?;
    site.train(&training("interrupted", LM, 1, &["train.steps=6"]))?;
    let again = site.train(&training("interrupted", LM, 1, &["train.steps=12"]))?;
    let most = apart(&whole, &again, "loss")?;
    let note =
        format!("losses of a run that was made longer differ by at most {most:.1e} from one of that length");
    Ok(Finding::judged(most <= 1e-5 && again.stderr.contains("resumed from"), note).with("most", most))
}

/// Checks that `--nproc` above the number of GPUs starts a worker per GPU, reports this, and trains the same.
fn fallback(site: &Site<'_>) -> Result<Finding> {
    let asked = (4).max(site.gpus + 1);
    let recipe = site.write("fallback.toml", LM)?;
    let all =
        Training { ranks: asked, sets: &["memory.micro_batch=auto"], ..training("fallback", LM, asked, &[]) };
    let ended = site.run(&mut site.launch(&all, &recipe))?.expect(0)?;
    let words = format!("starting {} worker", site.gpus);
    let ended = ended.says(&words)?;
    let run = Trained::read(&site.run_dir("fallback"), ended.stderr)?;
    let whole = site.train(&training("fallback-one", LM, 1, &[]))?;
    let most = apart(&whole, &run, "loss")?;
    let sentence = run.stderr.lines().find(|line| line.contains(&words)).unwrap_or_default();
    let workers = run.result["nproc"].as_u64().unwrap_or_default();
    Ok(Finding::judged(
        workers == site.gpus as u64 && most <= PARTITION,
        format!("`{sentence}`; losses differ by at most {most:.1e} from one worker's"),
    )
    .with("most", most))
}
