//! Trains the same recipe in every way and compares.

use anyhow::{Context, Result, ensure};

use super::recipes::{LM, RESNET};
use super::{Check, check};
use crate::gpu_test::finding::Finding;
use crate::gpu_test::proof::Kind;
use crate::gpu_test::suite::{Suite, Trained, Training};

/// The largest difference between losses of two partitions in float32, in the first steps.
const PARTITION: f64 = 1e-4;

/// The same between the CPU's and the GPU's kernels.
const DEVICES: f64 = 1e-3;

/// Returns the comparisons of a GPU with the CPU.
pub(in crate::gpu_test) fn devices() -> Vec<Check> {
    vec![
        check("CPU and GPU agree: GPT", 22, |suite| compare_devices(suite, LM, "gpt")),
        check("CPU and GPU agree: ResNet-18", 22, |suite| compare_devices(suite, RESNET, "resnet")),
    ]
}

pub(super) fn checks() -> Vec<Check> {
    let mut all = devices();
    all.extend([
        check("all partitions agree", 90, compare_partitions),
        check("BatchNorm over all ranks", 40, compare_synced_batch_norm),
        check("reduction after and during backward agree", 30, compare_overlap),
        check("float16 with loss scale", 20, check_loss_scale),
        check("bfloat16 learns like float32", 30, compare_bfloat16),
        check("recompute", 30, compare_recompute),
        check("resume", 40, compare_resumed),
        check("fewer GPUs than workers", 30, check_fewer_gpus),
    ]);
    all
}

fn training<'a>(name: &'a str, recipe: &'a str, ranks: usize, sets: &'a [&'a str]) -> Training<'a> {
    Training { name, recipe, ranks, sets, vars: &[] }
}

/// Returns the largest difference of a figure over the steps.
pub(super) fn largest_difference(one: &Trained, other: &Trained, figure: &str) -> Result<f64> {
    max_difference(one, other, figure, |a, b| (a - b).abs())
}

/// Returns how far two trainings differ: the larger of the largest absolute difference of losses and the
/// largest relative difference of gradient norms. Rounding is relative to a norm's size.
pub(super) fn divergence(one: &Trained, other: &Trained) -> Result<f64> {
    let norms = max_difference(one, other, "grad_norm", |a, b| {
        let size = f64::max(a.abs(), b.abs());
        if size > 0.0 { (a - b).abs() / size } else { (a - b).abs() }
    })?;
    let losses = largest_difference(one, other, "loss")?;
    Ok(if norms.is_nan() || norms > losses { norms } else { losses })
}

fn max_difference(
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

fn compare_partitions(suite: &Suite<'_>) -> Result<Finding> {
    let whole = suite.train(&training("whole", LM, 1, &[]))?;
    let mut most = 0f64;
    let mut found = Finding::passed("");
    for (name, ranks, sets) in [
        ("micro-batches-of-5", 1, &["memory.micro_batch=5"][..]),
        ("micro-batches-of-1", 1, &["memory.micro_batch=1"]),
        ("two-ranks", 2, &["memory.micro_batch=12"]),
        ("three-ranks", 3, &["memory.micro_batch=3"]),
        ("two-ranks-sharded", 2, &["memory.micro_batch=12", "memory.shard_optimizer=true"]),
    ] {
        let cut = suite.train(&training(name, LM, ranks, sets))?;
        let difference = largest_difference(&whole, &cut, "loss")?;
        found = found.with(name, difference);
        most = most.max(difference);
    }
    let note = format!("losses of 20 steps differ by at most {most:.1e}, goal {PARTITION:e}");
    Ok(Finding { figures: found.figures, ..suite.judged(true, most <= PARTITION, note) })
}

fn compare_devices(suite: &Suite<'_>, recipe: &str, name: &str) -> Result<Finding> {
    let names = ["gpu", "cpu"].map(|device| format!("{name}-on-{device}"));
    let on_gpu = suite.train(&training(&names[0], recipe, 1, &[]))?;
    let on_cpu = Training { vars: &[("CUDA_VISIBLE_DEVICES", "")], ..training(&names[1], recipe, 1, &[]) };
    let on_cpu = suite.train_on(&on_cpu, Kind::Cpu)?;
    let most = largest_difference(&on_gpu, &on_cpu, "loss")?;
    let note = format!("losses of all steps differ by at most {most:.1e}, goal {DEVICES:e}");
    Ok(suite.judged(true, most <= DEVICES, note).with("most", most))
}

fn compare_synced_batch_norm(suite: &Suite<'_>) -> Result<Finding> {
    let one = suite.train(&training("resnet-one", RESNET, 1, &["model.batchnorm=synced"]))?;
    let two = suite.train(&training(
        "resnet-two",
        RESNET,
        2,
        &["model.batchnorm=synced", "memory.micro_batch=8"],
    ))?;
    let most = largest_difference(&one, &two, "loss")?;
    let note =
        format!("losses of a ResNet on 1 rank and on 2 differ by at most {most:.1e}, goal {DEVICES:e}");
    Ok(suite.judged(true, most <= DEVICES, note).with("most", most))
}

fn compare_overlap(suite: &Suite<'_>) -> Result<Finding> {
    let sets =
        |overlap| ["memory.micro_batch=6", overlap, "reduce.first_bucket=4 KiB", "reduce.bucket=64 KiB"];
    let during = suite.train(&training("overlap", LM, 2, &sets("reduce.overlap=true")))?;
    let after = suite.train(&training("no-overlap", LM, 2, &sets("reduce.overlap=false")))?;
    let most = divergence(&during, &after)?;
    // Kernels with atomic additions sum in any order.
    let note = format!("losses and norms differ by at most {most:.1e}, goal 1e-5");
    Ok(suite.judged(true, most <= 1e-5, note).with("most", most))
}

/// Checks that a scale that overflows at first is halved with every skipped step, and at no other time.
fn check_loss_scale(suite: &Suite<'_>) -> Result<Finding> {
    // 2^40: far above the largest float16.
    let sets = ["precision.amp=fp16", "precision.loss_scale=1099511627776", "train.steps=60"];
    let recipe = LM.replace("tf32 = false\n", "");
    let run = suite.train(&training("fp16", &recipe, 1, &sets))?;
    let scales = run.per_step("loss_scale")?;
    let skipped: Vec<bool> = run.steps.iter().map(|step| step["skipped"] == true).collect();
    for (at, pair) in scales.windows(2).enumerate() {
        let expected = if skipped[at] { pair[0] / 2.0 } else { pair[0] };
        ensure!(
            pair[1] == expected,
            "the scale changed from {} to {} after step {}, which was {}",
            pair[0],
            pair[1],
            at + 1,
            if skipped[at] { "skipped" } else { "taken" }
        );
    }
    let count = skipped.iter().filter(|&&skipped| skipped).count();
    let losses = run.per_step("loss")?;
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    Ok(suite
        .judged(
            true,
            count > 0 && last < first,
            format!(
                "{count} of {} steps skipped, scale down to {:e}, loss from {first:.3} to {last:.3}",
                scales.len(),
                scales[scales.len() - 1]
            ),
        )
        .with("skipped", count as f64))
}

fn compare_bfloat16(suite: &Suite<'_>) -> Result<Finding> {
    let recipe = LM.replace("tf32 = false\n", "");
    let full = suite.train(&training("fp32", LM, 1, &["train.steps=60"]))?;
    let short = suite.train(&training("bf16", &recipe, 1, &["train.steps=60", "precision.amp=bf16"]))?;
    let ends = [full.per_step("loss")?, short.per_step("loss")?].map(|losses| losses[losses.len() - 1]);
    let off = (ends[1] / ends[0] - 1.0).abs();
    let note = format!("after 60 steps {:.3} in float32 and {:.3} in bfloat16", ends[0], ends[1]);
    Ok(suite.judged(true, off < 0.05, note).with("relative", off))
}

fn compare_recompute(suite: &Suite<'_>) -> Result<Finding> {
    let plain = suite.train(&training("recompute-off", LM, 1, &[]))?;
    let recomputed = suite.train(&training("recompute-on", LM, 1, &["memory.recompute=on"]))?;
    let most = divergence(&plain, &recomputed)?;
    let peak = |run: &Trained| run.result["peak_memory_bytes"][0].as_f64().context("no peak memory");
    let saved = peak(&plain)? / peak(&recomputed)?;
    let note =
        format!("losses and norms differ by at most {most:.1e}, goal 1e-5; {saved:.2} times less memory");
    Ok(suite.judged(saved > 1.0, most <= 1e-5, note).with("most", most).with("saved", saved))
}

fn compare_resumed(suite: &Suite<'_>) -> Result<Finding> {
    let whole = suite.train(&training("uninterrupted", LM, 1, &["train.steps=12"]))?;
    suite.train(&training("interrupted", LM, 1, &["train.steps=6"]))?;
    let resumed = suite.train(&training("interrupted", LM, 1, &["train.steps=12"]))?;
    let most = largest_difference(&whole, &resumed, "loss")?;
    let note = format!("losses of the extended run differ by at most {most:.1e} from an uninterrupted one");
    Ok(suite.judged(resumed.stderr.contains("resumed from"), most <= 1e-5, note).with("most", most))
}

/// Checks that `--nproc` above the number of GPUs starts a worker per GPU, reports this, and trains the same.
fn check_fewer_gpus(suite: &Suite<'_>) -> Result<Finding> {
    let requested = (4).max(suite.gpus + 1);
    let recipe = suite.write("fallback.toml", LM)?;
    let all = Training {
        ranks: requested,
        sets: &["memory.micro_batch=auto"],
        ..training("fallback", LM, requested, &[])
    };
    let ended = suite.run(&mut suite.launch(&all, &recipe))?.expect(0)?;
    let text = format!("starting {} worker", suite.gpus);
    let ended = ended.expect_stderr(&text)?;
    suite.proofs.add_training(&ended.stderr, suite.gpus, Kind::Gpu)?;
    let run = Trained::read(&suite.run_dir("fallback"), ended.stderr)?;
    let whole = suite.train(&training("fallback-one", LM, 1, &[]))?;
    let most = largest_difference(&whole, &run, "loss")?;
    let sentence = run.stderr.lines().find(|line| line.contains(&text)).unwrap_or_default();
    let workers = run.result["nproc"].as_u64().unwrap_or_default();
    Ok(suite
        .judged(
            workers == suite.gpus as u64,
            most <= PARTITION,
            format!("`{sentence}`; losses differ by at most {most:.1e} from one worker's"),
        )
        .with("most", most))
}
