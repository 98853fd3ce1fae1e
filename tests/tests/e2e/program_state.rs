//! State of exported programs that a step must treat as a whole: shared blocks, groups of samples with several rows, buffers
//! that are no statistics, and random numbers in evaluation.

use std::process::Output;

use dtrain_test_kit::{forks, thorough};
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::programs::worker;
use dtrain_tests::runs::{Run, Sandbox};
use dtrain_tests::trainings::{distance, tensors};

use crate::exported::{IMAGES, imported};
use crate::import::LIMIT;

const MODEL: &str = "model.safetensors";

fn names(sets: &[&str]) -> String {
    sets.join("-").replace(['=', ':', '.', '"'], "-")
}

fn train(sandbox: &Sandbox, ranks: usize, sets: &[&str]) -> Run {
    sandbox.train(ranks, &format!("{ranks}-{}", names(sets)), sets)
}

/// Runs `dtrain` in the sandbox.
fn ask(sandbox: &Sandbox, args: &[&str]) -> Output {
    let mut command = sandbox.dtrain(args);
    command.env("CUDA_VISIBLE_DEVICES", "").env("OMP_NUM_THREADS", "1").env("DTRAIN_WORKER", worker());
    finish(&mut command, LIMIT)
}

/// Small buckets, so that several start in backward.
const BUCKETS: [&str; 2] = ["reduce.bucket=1 KiB", "reduce.first_bucket=1 KiB"];

#[test]
fn blocks_that_share_parameters_are_recomputed_with_overlap() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "state.py:shared", "classify", IMAGES, "");
    let of =
        |ranks: usize, sets: &[&str]| tensors(&train(&sandbox, ranks, &[&BUCKETS[..], sets].concat()), MODEL);
    let whole = of(1, &["memory.recompute=off"]);
    for &ranks in thorough::cases(&[2, 1, 3], 1) {
        let after = of(ranks, &["memory.recompute=on", "reduce.overlap=false"]);
        let during = of(ranks, &["memory.recompute=on"]);
        assert!(during == after, "{ranks} ranks: only the time of the reductions differs");
        assert!(distance(&during, &whole) < 1e-6, "{ranks} ranks");
    }
    let words = ["plan", "recipe.toml", "--set", "memory.recompute=on", "--gpu", "t4"];
    expect_exit_code(&ask(&sandbox, &words), 0);
    if thorough::leaves_out("exported::stages_groups_averages_shards_and_bfloat16_apply") {
        return;
    }
    let sharded = of(2, &["memory.recompute=on", "memory.micro_batch=2", "memory.shard_optimizer=true"]);
    assert!(distance(&sharded, &whole) < 1e-6);
}

/// The reference normalises each micro-batch as a whole, as PyTorch does.
#[test]
fn groups_are_of_samples_whose_rows_are_frames() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "state.py:folded", "classify", IMAGES, "");
    let of = |ranks: usize, norm: &str, micro_batch: &str, recompute: &str| {
        // In more steps, rounding may change the sign of an input of ReLU.
        let sets = [
            "train.steps=3".to_owned(),
            format!("model.batchnorm={norm}"),
            format!("memory.micro_batch={micro_batch}"),
            format!("memory.recompute={recompute}"),
        ];
        tensors(&train(&sandbox, ranks, &sets.each_ref().map(String::as_str)), MODEL)
    };
    let whole = of(1, "local", "8", "off");
    let cuts = [(3, "3", "off"), (2, "4", "on"), (1, "8", "on"), (2, "2", "off")];
    for &group in thorough::cases(&["2", "1", "8"], 1) {
        let local = of(1, "local", group, "off");
        assert_eq!(distance(&local, &whole) > 1e-3, group != "8", "groups of {group} and the whole batch");
        let norm = format!("group:{group}");
        for &(ranks, micro_batch, recompute) in thorough::cases(&cuts, 2) {
            // Groups that do not fit are spread over the ranks.
            let parts = micro_batch.parse::<usize>().unwrap() * ranks;
            if parts < group.parse().unwrap() {
                continue;
            }
            let own = of(ranks, &norm, micro_batch, recompute);
            let distance = distance(&own, &local);
            assert!(distance < 1e-5, "{norm}, {ranks} ranks, {micro_batch}, {recompute}: {distance:e}");
        }
    }
}

#[test]
fn groups_need_the_rows_of_a_sample_together() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "state.py:folded_timewise", "classify", IMAGES, "");
    let text = expect_exit_code(&sandbox.launch(1, "refused", &["model.batchnorm=group:2"]), 2);
    assert!(text.contains("`layers.0.1` normalises rows of one sample that do not follow"), "{text}");
    if thorough::leaves_out("import::* and exported::* train without groups") {
        return;
    }
    assert!(train(&sandbox, 1, &["train.steps=1"]).0.latest().exists());
}

#[test]
fn an_evaluation_with_random_numbers_gives_the_same_figures() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "state.py:noisy", "classify", IMAGES, "");
    let figures = |run: &Run| {
        let last = run.evaluations().pop().unwrap();
        (last["loss"].as_f64().unwrap(), last["accuracy"].as_f64().unwrap())
    };
    let run = train(&sandbox, 1, &[]);
    let half = train(&sandbox, 1, &["train.steps=6"]);
    let from = half.0.latest();
    let resume = ["--resume", from.to_str().unwrap()];
    expect_exit_code(&sandbox.launch_with(1, "resumed", &[], &resume), 0);
    assert_eq!(figures(&sandbox.run("resumed")), figures(&run));
    let folder = run.0.latest();
    let evaluate = |more: &[&str]| {
        let folder = folder.to_str().unwrap();
        let args = ["eval", "recipe.toml", "--checkpoint", folder, "--json"];
        let text = expect_exit_code(&ask(&sandbox, &[&args, more].concat()), 0);
        let line = text.lines().find(|line| line.starts_with('{')).unwrap().to_owned();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap();
        (told["loss"].as_f64().unwrap(), told["accuracy"].as_f64().unwrap())
    };
    assert_eq!(evaluate(&[]), figures(&run));
    let cut = ["memory.micro_batch=3", "train.steps=1"];
    let text = expect_exit_code(&sandbox.launch(1, "cut", &cut), 0);
    let named = "depends on the micro-batch: the program draws random numbers for each micro-batch in \
                 scaled_dot_product_attention (";
    assert!(text.contains(named), "{text}");
    // The samples draw, not the batches.
    let (other, _) = evaluate(&["--batch", "3"]);
    assert!((other - figures(&run).0).abs() < 1e-6, "{other}");
    if thorough::leaves_out("the resumed run and the evaluation of its checkpoint") {
        return;
    }
    assert_eq!(figures(&train(&sandbox, 1, &["log.every_steps=2"])), figures(&run));
    assert_eq!(evaluate(&[]), figures(&run));
}

#[test]
fn a_step_with_a_queue_is_not_divided() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "state.py:queue", "classify", IMAGES, "");
    let run = train(&sandbox, 1, &["train.steps=3"]);
    let state = tensors(&run, MODEL);
    // Steps of 8, 8 and 4 samples.
    assert_eq!(state["pointer"].double_value(&[]), 20.0);
    assert_eq!(state["steps"].double_value(&[]), 3.0, "a buffer that is not persistent continues too");
    let filled = state["queue"].abs().sum_dim_intlist([1i64].as_slice(), false, None).gt(0.0);
    assert_eq!(filled.sum(None).int64_value(&[]), 20);
    let plan = std::fs::read_to_string(run.0.plan()).unwrap();
    assert!(plan.contains("training writes `queue`, `pointer`"), "{plan}");

    let remedy = "train on one rank with memory.micro_batch = 8";
    let cuts: [(usize, &[&str]); 3] =
        [(2, &[]), (1, &["memory.micro_batch=4"]), (3, &["memory.micro_batch=4"])];
    for &(ranks, sets) in thorough::cases(&cuts, 1) {
        let text = expect_exit_code(&sandbox.launch(ranks, "refused", sets), 2);
        assert!(text.contains("`queue`, `pointer`") && text.contains(remedy), "{text}");
    }
    let plan = |sets: &[&str]| ask(&sandbox, &[&["plan", "recipe.toml", "--gpu", "t4"], sets].concat());
    let text = expect_exit_code(&plan(&[]), 0);
    assert!(text.contains("training writes `queue`, `pointer`"), "{text}");
    for sets in thorough::cases(&[["--nproc", "2"], ["--set", "memory.micro_batch=4"]], 1) {
        let text = expect_exit_code(&plan(sets), 2);
        assert!(text.contains(remedy), "{text}");
    }

    let mut command = sandbox.command(1, "full", &[], &[]);
    command.env("DTRAIN_FAULT", "oom:rank=0,step=2,phase=backward,times=9").env("CUDA_VISIBLE_DEVICES", "");
    let text = expect_exit_code(&command.output().unwrap(), 3);
    assert!(text.contains("the smallest possible (training writes `queue`"), "{text}");
}
