//! `[[stage]]` through the launcher: what is frozen stays, state goes where it should, rates follow the stages, and a run that is
//! resumed anywhere is the run that was not interrupted.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dtrain_tests::ranks::said;
use dtrain_tests::runs::{Run, Sandbox, assert_close};
use dtrain_worker::models::TensorFile;
use serde_json::Value;
use tch::Tensor;

/// A tiny U-Net in two stages as in the guides: its last layer first, then all of it, unfrozen in three parts, with half the
/// batch and smaller rates where the weights lie deeper. 4 steps of 12 samples, then 6 of 6. However it is started, a
/// micro-batch is a half of a step, so that all sums have two terms and one rank computes what two do, bit by bit.
const UNET: &str = r#"
task = "segment"
[data]
kind = "generated"
classes = 3
train_samples = 24
test_samples = 6
image_size = 16
workers = 1
[model]
name = "unet"
width = 4
depth = 2
[train]
effective_batch = 12
seed = 3
[optim]
name = "adamw"
lr = 0.01
schedule = { name = "linear", warmup = "1 step" }
[memory]
micro_batch = 6
[ema]
decay = 0.9
[checkpoint]
every = "1 step"
keep = 100
[log]
every_steps = 1
[[stage]]
name = "head"
epochs = 2
freeze = ["inc.*", "down*", "up*"]
[[stage]]
name = "full"
steps = 6
effective_batch = 6
micro_batch = 3
lr_factor = 0.5
group = [{ match = ["inc.*", "down*"], lr_factor = 0.1 }]
unfreeze = [
    { at = 0, match = "up*" },
    { at = 0.3333, match = "down*" },
    { at = 0.6667, match = "*" },
]
"#;

/// After how many steps each group of the U-Net's parameters begins to be trained.
const BEGINS: [(&str, usize); 4] = [("outc", 0), ("up", 4), ("down", 6), ("inc", 8)];
const STEPS: usize = 10;

/// A tiny GPT in three stages, the second of which trains less than the first.
const GPT: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 16
test_samples = 4
[model]
name = "gpt"
width = 16
depth = 2
heads = 2
context = 8
[train]
effective_batch = 8
[optim]
lr = 0.01
schedule = { name = "onecycle", rise = 0.5, start_factor = 10, final_factor = 10 }
[memory]
micro_batch = 4
[ema]
decay = 0.9
[checkpoint]
every = "1 step"
keep = 100
[log]
every_steps = 1
[[stage]]
name = "all"
steps = 3
schedule = "continue"
[[stage]]
name = "blocks"
steps = 2
freeze = ["transformer.wte.*", "transformer.wpe.*"]
schedule = "continue"
[[stage]]
name = "last"
epochs = 2
ema = "restart"
freeze = ["transformer.h.0.*"]
unfreeze = [{ at = 0.5, match = "transformer.h.0.*" }]
"#;

fn checkpoint(run: &Run, step: usize) -> PathBuf {
    run.0.checkpoints().join(format!("step-{step:08}"))
}

/// The tensors of a file of a checkpoint, by name.
fn tensors(run: &Run, step: usize, file: &str) -> BTreeMap<String, Tensor> {
    let file = TensorFile::open(&checkpoint(run, step).join(file)).unwrap();
    let names = file.names().into_iter();
    names
        .map(|name| (name.clone(), file.read(&name).unwrap()))
        .collect()
}

fn same(one: &Tensor, other: &Tensor) -> bool {
    one.size() == other.size()
        && one.kind() == other.kind()
        && one.eq_tensor(other).all().int64_value(&[]) == 1
}

/// All files of the last checkpoint, bit by bit.
fn assert_same_end(one: &Run, other: &Run, steps: usize, what: &str) {
    for file in [
        "model.safetensors",
        "optimizer-00000-of-00001.safetensors",
        "ema.safetensors",
    ] {
        let (one, other) = (tensors(one, steps, file), tensors(other, steps, file));
        assert!(one.keys().eq(other.keys()), "{what}: {file} holds other tensors");
        for (name, tensor) in &one {
            assert!(same(tensor, &other[name]), "{what}: {name} in {file} differs");
        }
    }
}

fn stage_lines(run: &Run) -> Vec<Value> {
    let lines = run.metrics().into_iter();
    lines
        .filter_map(|line| line.get("stage").filter(|stage| stage.is_object()).cloned())
        .collect()
}

fn steps_of(run: &Run, key: &str) -> Vec<Value> {
    let lines = run.metrics().into_iter();
    lines
        .filter(|line| line.get("loss").is_some())
        .map(|line| line[key].clone())
        .collect()
}

fn figures_of(run: &Run, key: &str) -> Vec<f64> {
    steps_of(run, key)
        .iter()
        .map(|figure| figure.as_f64().unwrap())
        .collect()
}

fn losses(run: &Run) -> Vec<f64> {
    figures_of(run, "loss")
}

fn resume(sandbox: &Sandbox, nproc: usize, name: &str, from: &Path, sets: &[&str]) -> Run {
    let output = sandbox.launch_with(nproc, name, sets, &["--resume", from.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    sandbox.run(name)
}

#[test]
fn two_stages_with_progressive_unfreezing() {
    let sandbox = Sandbox::new(UNET);
    let output = sandbox.launch(1, "one", &[]);
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    let run = sandbox.run("one");

    // Linear over 4 steps from 0.01, then over 6 from 0.005, each behind a warm-up of one step.
    let rates = figures_of(&run, "lr");
    let third = 0.01 / 3.0;
    let by_hand = [
        0.01,
        0.01,
        2.0 * third,
        third,
        0.005,
        0.005,
        0.004,
        0.003,
        0.002,
        0.001,
    ];
    assert_close(&rates, &by_hand, 1e-12);
    let names: Vec<Value> = steps_of(&run, "stage");
    assert_eq!(names[..4], ["head"; 4]);
    assert_eq!(names[4..], ["full"; 6]);
    assert_eq!(steps_of(&run, "samples")[9], 48 + 36);
    assert_eq!(steps_of(&run, "epoch")[4], 3, "epochs are counted over the run");

    // What is frozen does not move by a bit, and what is unfrozen does.
    let weights: Vec<_> = (1..=STEPS)
        .map(|step| tensors(&run, step, "model.safetensors"))
        .collect();
    for (group, begins) in BEGINS {
        let names = weights[0]
            .keys()
            .filter(|name| name.starts_with(group) && name.ends_with("weight"));
        let names: Vec<&String> = names.collect();
        assert!(!names.is_empty(), "no {group} in {:?}", weights[0].keys());
        for name in names {
            for step in 1..STEPS {
                let moved = !same(&weights[step - 1][name], &weights[step][name]);
                assert_eq!(moved, step >= begins, "{name} in step {}", step + 1);
            }
        }
    }

    // State falls and rises with what is trained, and its updates are counted from where it began.
    let lines = stage_lines(&run);
    let figures = |key: &str| -> Vec<u64> { lines.iter().map(|line| line[key].as_u64().unwrap()).collect() };
    assert_eq!(figures("step"), [1, 5, 7, 9]);
    assert_eq!(
        (figures("number"), figures("phase")),
        (vec![1, 2, 2, 2], vec![1, 1, 2, 3])
    );
    assert_eq!(figures("effective_batch"), [12, 6, 6, 6]);
    let (trained, bytes) = (figures("trained"), figures("optimizer_bytes"));
    assert!(trained.windows(2).all(|pair| pair[0] < pair[1]), "{trained:?}");
    assert_eq!(trained[3], figures("parameters")[3]);
    for (trained, bytes) in trained.iter().zip(&bytes) {
        // Two moments in float32, with gaps of alignment.
        assert!(
            (8 * trained..8 * trained + 8000).contains(bytes),
            "{bytes} for {trained}"
        );
    }
    let updates = |step: usize, name: &str| {
        let state = tensors(&run, step, "optimizer-00000-of-00001.safetensors");
        state
            .get(&format!("step.{name}"))
            .map(|count| count.int64_value(&[]))
    };
    assert_eq!(
        (
            updates(4, "outc.conv.weight"),
            updates(4, "inc.double_conv.0.weight")
        ),
        (Some(4), None)
    );
    assert_eq!(
        updates(5, "outc.conv.weight"),
        Some(1),
        "a new stage has a new optimizer"
    );
    assert_eq!(
        updates(10, "outc.conv.weight"),
        Some(6),
        "within a stage it goes on"
    );
    assert_eq!(updates(10, "inc.double_conv.0.weight"), Some(2));

    for words in [
        "stage 1 of 2, \"head\": 2 epochs, ",
        "stage 2 of 2, \"full\": 6 steps, ",
        "effective batch 6 = 1 rank x 3 x 2 accumulation, learning rate 5e-3",
        "stage 2 of 2, \"full\" from step 7 on: ",
        "parameters trained",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let memory = text
        .lines()
        .filter(|line| line.contains("memory: ") && line.contains(" reserved"));
    assert!(
        memory.count() >= 4,
        "at the start, before the stage and after each unfreezing: {text}"
    );
    let plan: Value = serde_json::from_slice(&std::fs::read(run.0.plan()).unwrap()).unwrap();
    assert_eq!(plan["stages"][1]["steps"], serde_json::json!([5, 10]), "{plan}");
    assert_eq!(plan["stages"][1]["phases"][2]["first_step"], 9, "{plan}");

    // Two ranks compute the same, and any checkpoint goes on, on any number of ranks.
    let two = sandbox.train(2, "two", &[]);
    assert_same_end(&run, &two, STEPS, "two ranks");
    for (step, nproc) in [(2, 1), (4, 2), (5, 1), (6, 1), (7, 2), (8, 2)] {
        let name = format!("from-{step}");
        let resumed = resume(&sandbox, nproc, &name, &checkpoint(&run, step), &[]);
        assert_same_end(&run, &resumed, STEPS, &name);
        let begun: Vec<u64> = stage_lines(&resumed)
            .iter()
            .map(|line| line["step"].as_u64().unwrap())
            .collect();
        let expected: Vec<u64> = [5, 7, 9]
            .into_iter()
            .filter(|&first| first > step as u64)
            .collect();
        assert_eq!(begun, expected, "{name}");
    }
}

#[test]
fn a_stage_may_train_less_and_the_average_goes_on() {
    let sandbox = Sandbox::new(GPT);
    let run = sandbox.train(1, "one", &[]);
    let steps = 9;

    // One cycle over 9 steps, which turns at 0.5 x 9 - 1 = 3.5; the last stage has its own over 4, which turns at 1.
    let rates = figures_of(&run, "lr");
    let cosine =
        |from: f64, to: f64, part: f64| to + (from - to) * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0;
    let run_wide = |step: f64| match step <= 3.5 {
        true => cosine(0.001, 0.01, step / 3.5),
        false => cosine(0.01, 0.0001, (step - 3.5) / 4.5),
    };
    let mut by_hand: Vec<f64> = (0..5).map(|step| run_wide(f64::from(step))).collect();
    by_hand.extend([0.001, 0.01, cosine(0.01, 0.0001, 0.5), 0.0001]);
    assert_close(&rates, &by_hand, 1e-12);

    let (wte, frozen) = ("transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight");
    let raw: Vec<_> = (1..=steps)
        .map(|step| tensors(&run, step, "model.safetensors"))
        .collect();
    let averages: Vec<_> = (1..=steps)
        .map(|step| tensors(&run, step, "ema.safetensors"))
        .collect();
    assert!(same(&raw[2][wte], &raw[4][wte]), "frozen in the second stage");
    assert!(!same(&raw[4][wte], &raw[5][wte]), "trained again in the third");
    // The average of what was trained and rests moves on towards it: by 1 / (10 + t) to begin with, t updates later.
    let apart = |step: usize| {
        (&averages[step - 1][wte] - &raw[step - 1][wte])
            .norm()
            .double_value(&[])
    };
    let left = |t: f64| (1.0 + t) / (10.0 + t);
    assert!(
        (apart(4) / apart(3) - left(3.0)).abs() < 1e-3,
        "{} of {}",
        apart(4),
        apart(3)
    );
    assert!((apart(5) / apart(4) - left(4.0)).abs() < 1e-3);
    // It begins again with the last stage, where what is frozen has not been trained since.
    assert!(!averages[5].contains_key(frozen) && averages[7].contains_key(frozen));
    assert!(averages[4].contains_key(frozen));

    let bytes: Vec<u64> = stage_lines(&run)
        .iter()
        .map(|line| line["optimizer_bytes"].as_u64().unwrap())
        .collect();
    assert!(
        bytes[1] < bytes[0] && bytes[2] < bytes[3] && bytes[3] == bytes[0],
        "{bytes:?}"
    );

    let sharded = sandbox.train(2, "sharded", &["memory.shard_optimizer=true"]);
    assert_same_end(&run, &sharded, steps, "two ranks that share the state");
    let halves: Vec<u64> = stage_lines(&sharded)
        .iter()
        .map(|line| line["optimizer_bytes"].as_u64().unwrap())
        .collect();
    for (half, whole) in halves.iter().zip(&bytes) {
        assert!(
            (*half as f64 / *whole as f64 - 0.5).abs() < 0.05,
            "{halves:?} of {bytes:?}"
        );
    }
    for (step, nproc, sets) in [
        (3, 2, &["memory.shard_optimizer=true"][..]),
        (4, 1, &[]),
        (5, 2, &[]),
        (7, 2, &["memory.shard_optimizer=true"]),
        (8, 1, &[]),
    ] {
        let name = format!("from-{step}");
        let resumed = resume(&sandbox, nproc, &name, &checkpoint(&sharded, step), sets);
        assert_same_end(&run, &resumed, steps, &name);
    }

    // Cuts and names may change on the way, and the last stage is made longer where its parts are not moved by that.
    let sets = ["stage.2.micro_batch=2", "stage.2.name=end"];
    let resumed = resume(&sandbox, 1, "cut", &checkpoint(&run, 5), &sets);
    assert_close(&losses(&run)[5..], &losses(&resumed), 1e-4);
    let from = checkpoint(&run, 5);
    let more = ["--resume", from.to_str().unwrap()];
    let output = sandbox.launch_with(1, "other", &["stage.1.steps=3"], &more);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("stage") && text.contains("steps = 3"), "{text}");
}

#[test]
fn one_stage_is_a_run() {
    let plain = GPT.split("[[stage]]").next().unwrap();
    let plain = plain.replace("[train]\n", "[train]\nsteps = 3\n");
    let sandbox = Sandbox::new(&plain);
    let run = sandbox.train(2, "plain", &[]);
    assert!(stage_lines(&run).is_empty() && steps_of(&run, "stage") == vec![Value::Null; 3]);
    let staged = format!(
        "{}[[stage]]\nname = \"only\"\nsteps = 3\n",
        plain.replace("steps = 3\n", "")
    );
    std::fs::write(sandbox.path("recipe.toml"), staged).unwrap();
    let staged = sandbox.train(2, "staged", &[]);
    assert_same_end(&run, &staged, 3, "one stage");
    assert_eq!(losses(&run), losses(&staged));
}

/// A module of TorchScript with another loss in each stage.
#[test]
fn a_stage_has_its_own_loss() {
    let module = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("parity/reference/net.pt");
    let recipe = format!(
        "task = \"torchscript\"\n[data]\nkind = \"generated\"\nclasses = 4\ntrain_samples = 16\ntest_samples = 4\nimage_size = 16\n\
         workers = 1\n[model]\nfile = {module:?}\n[train]\neffective_batch = 8\n[optim]\nlr = 0.001\n[log]\nevery_steps = 1\n\
         [[stage]]\nname = \"a\"\nepochs = 1\n[[stage]]\nname = \"b\"\nepochs = 1\nloss = \"mse\"\n"
    );
    let sandbox = Sandbox::new(&recipe);
    let run = sandbox.train(1, "run", &[]);
    let evaluations = run.evaluations();
    assert!(evaluations[0].get("accuracy").is_some() && evaluations[1].get("accuracy").is_none());
    // The cross-entropy of four classes is above 1 at first, the mean square of a class and three others below.
    let losses = losses(&run);
    assert!(losses[0] > 1.0 && losses[2] < 1.0, "{losses:?}");
    // A loss that the module does not give ends the run before it begins, whichever stage it is of.
    let output = sandbox.launch(1, "module", &["stage.1.loss=module"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(!sandbox.path("module/metrics.jsonl").exists(), "{text}");
}

#[test]
fn stages_that_are_a_mistake() {
    let sandbox = Sandbox::new(UNET);
    let refused = |nproc: usize, sets: &[&str], words: &[&str]| {
        let output = sandbox.launch(nproc, "run", sets);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        for word in words {
            assert!(text.contains(word), "no {word:?} in: {text}");
        }
        assert_eq!(
            text.lines().filter(|line| line.contains("error:")).count(),
            1,
            "{text}"
        );
    };
    refused(
        2,
        &["stage.0.freeze=[\"encoder.*\"]"],
        &["stage[0].freeze", "matches no parameter; the nearest are"],
    );
    refused(
        2,
        &["stage.1.unfreeze.1.match=\"dwon*\""],
        &["stage[1].unfreeze[1].match", "matches no parameter"],
    );
    refused(
        1,
        &["stage.1.unfreeze.1.match=\"up1.*\""],
        &[
            "stage[1].unfreeze[1].match",
            "nothing that it matches is frozen",
            "remove the entry",
        ],
    );
    refused(
        1,
        &["stage.1.freeze=[\"up*\"]"],
        &[
            "stage[1].unfreeze[0].match",
            "remove it from freeze, or unfreeze it at a later part",
        ],
    );
    refused(
        1,
        &["stage.0.freeze=[\"*\"]"],
        &["stage \"head\" begins with every parameter frozen"],
    );
    refused(
        1,
        &["stage.0.group=[{ match = \"inc.*\", lr_factor = 2 }]"],
        &["stage[0].group[0]", "frozen in this stage", "remove the group"],
    );
    refused(
        1,
        &["train.epochs=3"],
        &["train.epochs", "every [[stage]] says how long it is"],
    );
    refused(1, &["stage.1.epochs=1"], &["stage[1].steps", "remove the other"]);
    refused(1, &["stage.2.epochs=1"], &["stage.0 to stage.1"]);
    refused(
        1,
        &["optim.schedule.warmup=\"5 steps\""],
        &["stage \"head\"", "optim.schedule.warmup", "over 4 only"],
    );
    refused(
        2,
        &["stage.1.effective_batch=1", "stage.1.micro_batch=auto"],
        &["stage \"full\"", "effective batch of 1"],
    );
}
