//! A rank runs out of memory: all ranks drop the step and retry it in smaller micro-batches. The result must
//! equal a run with these micro-batches from that step on.

use std::process::Output;
use std::time::Duration;

use dtrain_test_kit::forks;
use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, finish, output_text};
use dtrain_tests::runs::{Run, Sandbox, assert_close};

use crate::exported::{IMAGES, TEXTS, imported};
use crate::step_losses;

/// A GPT on a generated text, with all state that a step changes: moments, average, clipping.
const LM: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 64
test_samples = 13
workers = 1
[model]
width = 32
depth = 2
heads = 2
context = 16
[train]
effective_batch = 12
steps = 4
seed = 3
[optim]
lr = 0.01
clip = 0.5
schedule = { name = "constant" }
[ema]
decay = 0.9
[log]
every_steps = 1
"#;

/// A U-Net with BatchNorm on generated images of 16 pixels.
const SEGMENT: &str = r#"
task = "segment"
[data]
kind = "generated"
classes = 3
train_samples = 48
test_samples = 11
image_size = 16
workers = 1
[model]
width = 4
depth = 2
[train]
effective_batch = 12
steps = 4
seed = 3
[optim]
name = "sgd"
momentum = 0.9
lr = 0.01
schedule = { name = "constant" }
[log]
every_steps = 1
"#;

/// No run takes longer, unless a rank waits for a failed rank.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs of one recipe with one number of ranks.
struct Ranks<'a> {
    sandbox: &'a Sandbox,
    nproc: usize,
    sets: Vec<&'a str>,
    transport: &'a str,
}

impl<'a> Ranks<'a> {
    fn new(sandbox: &'a Sandbox, nproc: usize, sets: &[&'a str]) -> Self {
        Self { sandbox, nproc, sets: sets.to_vec(), transport: "auto" }
    }

    fn launch(&self, name: &str, sets: &[&str], from: Option<&Run>, fault: &str) -> Output {
        let from = from.map(|run| run.0.latest());
        let resume: Vec<&str> =
            from.iter().flat_map(|folder| ["--resume", folder.to_str().unwrap()]).collect();
        let sets = [self.sets.as_slice(), sets].concat();
        let mut command = self.sandbox.command(self.nproc, name, &sets, &resume);
        command.env("DTRAIN_TRANSPORT", self.transport).env("CUDA_VISIBLE_DEVICES", "");
        if !fault.is_empty() {
            command.env("DTRAIN_FAULT", fault);
        }
        finish(&mut command, LIMIT)
    }

    fn train(&self, name: &str, sets: &[&str], from: Option<&Run>, fault: &str) -> Run {
        let output = self.launch(name, sets, from, fault);
        assert!(output.status.success(), "{fault}: {}", output_text(&output));
        self.sandbox.run(name)
    }

    /// Returns the run to compare from. Its checkpoint is after two steps of one rank, whatever the number of ranks.
    fn base(&self) -> Run {
        let name = format!("base-{}", self.sets.len());
        if self.sandbox.path(&name).exists() {
            return self.sandbox.run(&name);
        }
        let one = Self { nproc: 1, sets: self.sets.clone(), ..*self };
        one.train(&name, &["train.steps=2"], None, "")
    }

    /// Makes allocations fail in the step after [`Ranks::base`], in each of `phases` (plus options of DTRAIN_FAULT) on each
    /// rank. Compares with a run that uses the resulting micro-batches from this step on. A normal check takes the
    /// first `count` failures, on alternating ranks.
    fn assert_taken_again(&self, phases: &[&str], count: usize) {
        let base = self.base();
        let (from, to) = (12 / self.nproc, 12 / self.nproc / 2);
        let smaller = format!("memory.micro_batch={to}");
        let what = format!("{}-{}-{}", self.nproc, self.sets.len(), self.transport);
        let reference = self.train(&format!("reference-{what}"), &[&smaller], Some(&base), "");
        let failure = |index: usize| {
            let (turn, at) = (index / phases.len(), index % phases.len());
            ((turn + at + 1) % self.nproc, phases[at])
        };
        let failures: Vec<(usize, &str)> = (0..self.nproc * phases.len()).map(failure).collect();
        for &(rank, phase) in thorough::cases(&failures, count) {
            let fault = format!("oom:rank={rank},step=3,phase={phase}");
            let run = self.train(&format!("{what}-{rank}-{phase}"), &[], Some(&base), &fault);
            let what = format!("{fault} of {} ranks with {:?}", self.nproc, self.sets);
            let [shortage] = run.shortages().try_into().unwrap_or_else(|all| {
                panic!("{what}: not one shortage but {all:?}");
            });
            assert_same_end(&run, &reference, &what);
            assert_eq!(shortage["step"], 3, "{what}");
            assert_eq!(shortage["ranks"], serde_json::json!([rank]), "{what}");
            assert_eq!(shortage["phase"], phase.split(',').next().unwrap(), "{what}");
            assert_eq!(shortage["micro_batch"]["from"], from, "{what}");
            assert_eq!(shortage["micro_batch"]["to"], to, "{what}");
            assert!(shortage["agree_ms"].as_f64().unwrap() < 1000.0, "{what}: {shortage}");
            let result = run.result();
            assert_eq!((result.oom_replays, result.micro_batch), (Some(1), Some(to)), "{what}");
        }
    }
}

/// Checks that weights, statistics, moments and average are equal, bit by bit.
fn assert_same_end(run: &Run, reference: &Run, what: &str) {
    let read = |run: &Run, file| std::fs::read(run.0.latest().join(file));
    for file in ["model.safetensors", "optimizer-00000-of-00001.safetensors"] {
        assert!(read(run, file).unwrap() == read(reference, file).unwrap(), "{what}: {file} differs");
    }
    let average = "ema.safetensors";
    assert!(read(run, average).ok() == read(reference, average).ok(), "{what}: {average} differs");
    assert_eq!(run.per_step("loss"), reference.per_step("loss"), "{what}");
    assert_eq!(run.per_step("samples"), reference.per_step("samples"), "{what}");
}

const PHASES: [&str; 5] = ["forward,after=25", "backward", "prepare", "forward", "backward,after=25"];

/// A bucket for every few parameters, sent in 16 bits after backward.
const COMPRESSED: [&str; 4] = [
    "reduce.compress=\"bf16\"",
    "reduce.overlap=false",
    "reduce.first_bucket=\"32 KiB\"",
    "reduce.bucket=\"32 KiB\"",
];

#[test]
fn the_step_is_repeated() {
    let sandbox = Sandbox::new(LM);
    let of_three = ["forward,after=9", "backward,after=30", "prepare"];
    let cases: [(usize, &[&str]); 3] = [(2, &PHASES), (1, &PHASES), (3, &of_three)];
    for &(nproc, phases) in thorough::cases(&cases, 1) {
        Ranks::new(&sandbox, nproc, &[]).assert_taken_again(phases, 3);
    }
}

#[test]
fn a_failed_reduction_loses_no_bucket() {
    let sandbox = Sandbox::new(LM);
    for &nproc in thorough::cases(&[3, 2], 1) {
        Ranks::new(&sandbox, nproc, &COMPRESSED).assert_taken_again(&["reduce", "reduce,after=2"], 2);
    }
}

#[test]
fn the_step_is_repeated_with_shards_and_over_tcp() {
    let sandbox = Sandbox::new(LM);
    let sets = [&COMPRESSED[..], &["memory.shard_optimizer=true"]].concat();
    let ranks = Ranks { transport: "gloo", ..Ranks::new(&sandbox, 2, &sets) };
    ranks.assert_taken_again(&["reduce,after=4", "prepare", "reduce,after=1", "forward,after=9"], 2);
    if thorough::is_wanted() {
        let ranks = Ranks::new(&sandbox, 3, &["memory.shard_optimizer=true"]);
        ranks.assert_taken_again(&["backward,after=9"], 1);
    }
}

#[test]
fn exported_programs_take_the_step_again() {
    let Ok(python) = forks::pytorch() else { return };
    let sets = ["train.effective_batch=12", "train.steps=4", "ema.decay=0.9"];
    let recomputed = [&sets[..], &["memory.recompute=on", "memory.shard_optimizer=true"]].concat();
    let phases = ["backward,after=9", "forward,after=9"];
    for (function, task, data, model, sets, phases) in [
        ("gpt", "lm", TEXTS, "", &recomputed[..], phases),
        ("normed", "classify", IMAGES, "", &sets[..], phases),
        // The first pass of a loss over the step, on the one rank that has no memory.
        ("towers", "program", IMAGES, step_losses::TOWERS, &recomputed[..], ["outputs,after=9", phases[0]]),
    ] {
        let sandbox = imported(&python, function, task, data, model);
        Ranks::new(&sandbox, 2, sets).assert_taken_again(&phases, 1);
    }
}

#[test]
fn running_statistics_are_those_of_the_last_try() {
    let sandbox = Sandbox::new(SEGMENT);
    for &nproc in thorough::cases(&[2, 1], 1) {
        // In the only micro-step; below, in the second of two: the first has changed the statistics.
        let ranks = Ranks::new(&sandbox, nproc, &[]);
        ranks.assert_taken_again(&["forward,after=30", "backward,after=20"], 1);
    }
    let ranks = Ranks::new(&sandbox, 1, &["memory.micro_batch=6"]);
    let base = ranks.base();
    let reference = ranks.train("reference", &["memory.micro_batch=3"], Some(&base), "");
    for phase in thorough::cases(&["backward,after=12", "forward,after=12"], 1) {
        let fault = format!("oom:rank=0,step=3,micro_step=2,phase={phase}");
        let run = ranks.train(phase, &[], Some(&base), &fault);
        assert_same_end(&run, &reference, &fault);
    }
}

#[test]
fn synced_batch_norm_does_not_wait_for_a_failed_rank() {
    let sandbox = Sandbox::new(SEGMENT);
    let synced = "model.batchnorm=\"synced\"";
    for &(nproc, rank) in thorough::cases(&[(2, 1), (3, 1), (2, 0)], 1) {
        let ranks = Ranks::new(&sandbox, nproc, &[synced]);
        let smaller = format!("memory.micro_batch={}", 12 / nproc / 2);
        let name = |what: &str| format!("{what}-{nproc}-{rank}");
        let base = ranks.train(&name("base"), &["train.steps=3"], None, "");
        let reference = ranks.train(&name("reference"), &[&smaller], Some(&base), "");
        for phase in ["forward,after=40", "backward,after=40"] {
            // The expected joint sums of a micro-step are known from the step before the failed one.
            let fault = format!("oom:rank={rank},step=4,phase={phase}");
            let run = ranks.train(&name(phase), &[], None, &fault);
            assert_eq!(run.shortages().len(), 1, "{fault}");
            let losses = run.per_step("loss");
            assert_eq!(losses.last(), reference.per_step("loss").last(), "{fault}");
            assert!(run.weights() == reference.weights(), "{fault}");
        }
        // For the first micro-step, they are known from the rehearsal.
        let reference = ranks.train(&name("smaller"), &[&smaller], None, "");
        let run = ranks.train(&name("first"), &[], None, "oom:rank=0,step=1,phase=forward");
        assert_eq!(run.shortages().len(), 1);
        assert!(run.weights() == reference.weights());
    }
}

#[test]
fn an_update_or_evaluation_without_memory_is_repeated() {
    let sandbox = Sandbox::new(LM);
    for &nproc in thorough::cases(&[2, 1, 3], 1) {
        let ranks = Ranks::new(&sandbox, nproc, &[]);
        let base = ranks.base();
        let train =
            |what: &str, fault: &str| ranks.train(&format!("{what}-{nproc}"), &[], Some(&base), fault);
        let plain = train("plain", "");
        for (rank, after) in (0..nproc).zip([0, 1, 2]) {
            let fault = format!("oom:rank={rank},step=3,phase=update,after={after}");
            let run = train(&format!("update-{after}"), &fault);
            assert_same_end(&run, &plain, &fault);
            assert_eq!(run.result().oom_replays, Some(0));
            assert!(!run.log(rank).contains("DTRAIN_FAULT had no effect"), "{fault}");
        }
        // An evaluation restarts in smaller batches.
        let fault = format!("oom:rank={},step=4,phase=evaluate,after=20", nproc - 1);
        let run = train("evaluated", &fault);
        assert!(run.weights() == plain.weights());
        let loss = |run: &Run| run.evaluations()[0]["loss"].as_f64().unwrap();
        assert!((loss(&run) / loss(&plain) - 1.0).abs() < 1e-5);
        assert_eq!(run.evaluations()[0]["samples"], 13);
        assert_eq!(run.shortages()[0]["phase"], "evaluate");
        let result = run.result();
        assert_eq!((result.oom_replays, result.micro_batch), (Some(0), Some(12 / nproc)));
    }
}

#[test]
fn the_micro_batch_halves_until_the_run_ends_with_a_table() {
    let sandbox = Sandbox::new(LM);
    for &nproc in thorough::cases(&[2, 1], 1) {
        let ranks = Ranks::new(&sandbox, nproc, &[]);
        let base = ranks.base();
        let name = |what: &str| format!("{what}-{nproc}");
        let to = format!("memory.micro_batch={}", 12 / nproc / 4);
        let reference = ranks.train(&name("reference"), &[&to], Some(&base), "");
        let fault = "oom:rank=0,step=3,phase=backward,after=9,times=2";
        let run = ranks.train(&name("twice"), &[], Some(&base), fault);
        assert_same_end(&run, &reference, fault);
        assert_eq!(run.result().oom_replays, Some(2));

        let fault = "oom:rank=0,step=3,phase=forward,times=9";
        let text = expect_exit_code(&ranks.launch(&name("never"), &[], Some(&base), fault), 3);
        for words in ["out of memory on rank 0 in forward at step 3", "batches of 1", "optimizer  ", "all  "]
        {
            assert!(text.contains(words), "no {words:?} in {text}");
        }
    }
}

#[test]
fn the_micro_batch_grows_again_only_if_configured() {
    let sandbox = Sandbox::new(LM);
    let ranks = Ranks::new(&sandbox, 2, &["train.steps=8"]);
    let fault = "oom:rank=1,step=2,phase=forward,times=2";
    let stays = ranks.train("stays", &[], None, fault);
    assert_eq!(stays.result().micro_batch, Some(1));
    // 6 steps per epoch: one beginning of an epoch, one doubling.
    let grows = ranks.train("grows", &["memory.grow=true"], None, fault);
    assert_eq!(grows.result().micro_batch, Some(2));
    assert_close(&grows.per_step("loss"), &stays.per_step("loss"), 1e-5);
    assert!(grows.log(0).contains("memory.grow: micro-batch 2 instead of 1"));
}

#[test]
fn any_budget_trains_exactly_or_ends_with_code_3() {
    let sandbox = Sandbox::new(LM);
    let ranks = Ranks::new(&sandbox, 2, &["train.effective_batch=32", "train.seed=4"]);
    let free = ranks.train("free", &[], None, "");
    let losses = free.per_step("loss");
    let (mut ended, mut smaller, mut whole) = (0, 0, 0);
    for &kib in thorough::cases(&[50, 1200, 6000, 300, 600, 900, 1600, 2400], 3) {
        let budget = format!("memory.budget=\"{kib} KiB\"");
        let name = format!("budget-{kib}");
        let output = ranks.launch(&name, &[&budget], None, "");
        let text = output_text(&output);
        match output.status.code() {
            Some(0) => {
                let run = sandbox.run(&name);
                assert_close(&run.per_step("loss"), &losses, 1e-4);
                assert_eq!(run.per_step("samples"), free.per_step("samples"));
                match run.result().micro_batch {
                    Some(16) => whole += 1,
                    _ => smaller += 1,
                }
            }
            Some(3) => ended += 1,
            other => panic!("{budget}: exit code {other:?}: {text}"),
        }
    }
    assert!(
        ended > 0 && smaller > 0 && whole > 0,
        "{ended} ended, {smaller} trained in smaller micro-batches, {whole} in whole ones"
    );
}
