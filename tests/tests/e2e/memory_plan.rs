//! Memory before a run: predictions compared with real steps, plans, budgets, and errors in both.

use std::process::{Command, Output};

use dtrain_test_kit::cgroup::SmallGroup;
use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, output_text};
use dtrain_tests::programs::{dtrain, without_outer_run, worker};
use dtrain_tests::runs::{Sandbox, assert_close};
use serde_json::Value;

/// Large enough that activations matter beside the workspace of kernels.
const GPT: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 48
test_samples = 8
workers = 1
[model]
width = 128
depth = 4
heads = 4
context = 64
[train]
effective_batch = 12
steps = 3
seed = 3
[optim]
lr = 0.01
[log]
every_steps = 1
"#;

/// The state and its copy take as much as the program itself.
const HEAVY: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 8
test_samples = 1
[model]
width = 512
depth = 6
heads = 8
context = 32
[train]
effective_batch = 8
steps = 1
"#;

const IMAGES: &str = r#"
task = "classify"
[data]
kind = "generated"
classes = 4
train_samples = 32
test_samples = 8
image_size = 48
workers = 1
[model]
name = "resnet18"
[train]
effective_batch = 8
steps = 3
[optim]
lr = 0.001
"#;

fn ask(sandbox: &Sandbox, verb: &str, arguments: &[&str]) -> Output {
    let mut command = sandbox.dtrain(&[verb, "recipe.toml"]);
    command.args(arguments).env("DTRAIN_WORKER", worker()).env("OMP_NUM_THREADS", "1").output().unwrap()
}

fn json(output: &Output) -> Value {
    expect_exit_code(output, 0);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn predictions_match_measurements() {
    let profile = |sandbox: &Sandbox, more: &[&str]| {
        let mut arguments = vec!["--stage", "all", "--json"];
        arguments.extend(more);
        let answer = json(&ask(sandbox, "profile", &arguments));
        let measured = answer["stages"][0]["measured"].clone();
        let bytes = |value: &Value| value["peak"].as_f64().unwrap();
        let (took, predicted) = (bytes(&measured), bytes(&measured["predicted"]));
        assert!((predicted / took - 1.0).abs() < 0.03, "{more:?}: {predicted} predicted, {took} measured");
        // Memory that persists between steps is predicted to the byte.
        for owner in ["parameters", "gradients", "optimizer", "ema", "buffers"] {
            assert_eq!(measured["owners"][owner], measured["predicted"]["owners"][owner], "{owner}");
        }
        took
    };
    let sandbox = Sandbox::new(GPT);
    let plain = profile(&sandbox, &[]);
    let again = profile(&sandbox, &["--set", "memory.recompute=on"]);
    assert!(again < plain * 0.8, "{again} of {plain} with recompute");
    let cases: [(&str, &[&str]); 3] = [
        (GPT, &["--nproc", "3", "--set", "memory.shard_optimizer=true", "--set", "optim.name=muon"]),
        (IMAGES, &["--set", "memory.micro_batch=2", "--set", "model.freeze=[\"layer1.*\"]"]),
        (IMAGES, &["--set", "ema.decay=0.9"]),
    ];
    for &(recipe, more) in thorough::cases(&cases, 2) {
        profile(&Sandbox::new(recipe), more);
    }
}

#[test]
fn a_model_larger_than_any_machine_is_planned() {
    let sandbox = Sandbox::new(GPT);
    let large =
        ["model.width=8192", "model.depth=9", "model.heads=64", "model.context=2048", "precision.amp=bf16"];
    let mut arguments = vec!["--gpu", "80GiB,192GiB", "--nproc", "4", "--json"];
    arguments.extend(large.iter().flat_map(|set| ["--set", set]));
    let plan = json(&ask(&sandbox, "plan", &arguments));
    assert!(plan["subject"]["parameters"].as_u64().unwrap() > 7_000_000_000);
    assert!(plan["rows"][0].get("no-fit").is_some(), "{plan}");
    let fit = &plan["rows"][1]["fit"]["prediction"];
    assert_eq!(fit["cut"]["ranks"], 4);
    assert!(fit["peak"].as_u64().unwrap() > 100 << 30, "four values for every parameter");
    assert!(fit["peak"].as_u64() <= plan["rows"][1]["budget"].as_u64());
    // If nothing fits: exit code 3.
    let mut arguments = vec!["--gpu", "8GiB"];
    arguments.extend(large.iter().flat_map(|set| ["--set", set]));
    expect_exit_code(&ask(&sandbox, "plan", &arguments), 3);
}

#[test]
fn a_run_fits_its_budget_or_names_a_micro_batch_that_fits() {
    let sandbox = Sandbox::new(GPT);
    let free = sandbox.train(1, "free", &[]);
    let peak = free.result().peak_memory_bytes[0];
    let plan = free.plan();
    let predicted = plan["predictions"][0]["peak"].as_f64().unwrap();
    assert!((predicted / peak as f64 - 1.0).abs() < 0.03, "{predicted} predicted, {peak} taken");

    let state: u64 = ["parameters", "gradients", "optimizer"]
        .iter()
        .map(|key| plan["predictions"][0]["owners"][key].as_u64().unwrap())
        .sum();
    let budget = state + (peak - state) / 3;
    let set = format!("memory.budget={budget}");
    let tight = sandbox.train(1, "tight", &[&set]);
    assert_eq!(tight.result().oom_replays, Some(0), "it was planned so");
    assert!(tight.result().peak_memory_bytes[0] <= budget);
    assert_close(&free.per_step("loss"), &tight.per_step("loss"), 1e-4);

    // A fixed micro-batch that does not fit: the run names one that fits, and retries in smaller ones.
    let set = format!("memory.budget={}", state + (peak - state) / 8);
    let text = expect_exit_code(&sandbox.launch(1, "stated", &[&set, "memory.micro_batch=12"]), 0);
    assert!(text.contains("; memory.micro_batch = ") && text.contains(" fits"), "{text}");
    assert!(!text.contains("no smaller cut"), "{text}");

    let set = format!("memory.budget={}", state / 2);
    let text = expect_exit_code(&sandbox.launch(1, "hopeless", &[&set]), 3);
    assert!(
        text.contains("before the first step")
            && text.contains("optimizer")
            && text.contains("  requested  "),
        "{text}"
    );
    assert!(!text.contains("Exception raised from"), "no stack of C++: {text}");
}

#[test]
fn steps_report_memory_by_owner() {
    let sandbox = Sandbox::new(GPT);
    let run = sandbox.train(2, "run", &["ema.decay=0.9"]);
    let steps: Vec<Value> = run.metrics().into_iter().filter(|line| line.get("loss").is_some()).collect();
    for step in steps {
        let memory = &step["memory"];
        let owners = memory["owners"].as_object().unwrap();
        let together: u64 = owners.values().map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!(Some(together), memory["peak"].as_u64(), "{memory}");
        assert!(owners["activations"].as_u64() > owners["buffers"].as_u64());
        assert_eq!(owners["ema"], owners["parameters"]);
        let phases = memory["phases"].as_object().unwrap();
        let highest = phases.values().map(|bytes| bytes.as_u64().unwrap()).max();
        assert_eq!(highest, memory["peak"].as_u64());
        assert!(memory["allocated"].as_u64() < memory["peak"].as_u64());
    }
}

#[test]
fn invalid_plan_arguments_are_errors() {
    let sandbox = Sandbox::new(GPT);
    for (verb, arguments, says) in [
        ("plan", vec!["--gpu", "a1000"], "a100"),
        ("plan", vec!["--stage", "decoder", "--gpu", "t4"], "decoder"),
        ("profile", vec!["--stage", "decoder"], "decoder"),
        ("plan", vec!["--gpu", "t4", "--nproc", "13"], "13"),
        ("plan", vec!["--gpu", "t4", "--set", "model.heads=3"], "heads"),
    ] {
        let output = ask(&sandbox, verb, &arguments);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(says), "{arguments:?}: {text}");
    }
}

/// The copy of the state, which a checkpoint makes in host memory, is no reason for the kernel to kill a worker.
#[test]
fn a_run_that_just_fits_is_refused_and_not_killed_at_its_first_checkpoint() {
    let sandbox = Sandbox::new(HEAVY);
    let (mut refused, mut trained) = (0, 0);
    for mib in [560, 580, 540, 600] {
        let Ok(group) = SmallGroup::new(&format!("just-fits-{mib}"), mib << 20) else { return };
        let run = format!("run-{mib}");
        let mut command = Command::new("sh");
        command.args(["-c", &group.enter(), "sh"]).arg(dtrain());
        command.args(["launch", "--nproc", "1", "--run-dir", &run, "recipe.toml"]);
        command.current_dir(sandbox.path("")).env("DTRAIN_WORKER", worker()).env("CUDA_VISIBLE_DEVICES", "");
        without_outer_run(&mut command);
        let output = command.output().unwrap();
        let text = output_text(&output);
        match output.status.code() {
            Some(0) => {
                assert!(sandbox.run(&run).0.checkpoint(1).is_dir(), "{text}");
                trained += 1;
            }
            Some(3) => refused += usize::from(text.contains("a copy of the state for checkpoints takes ")),
            code => panic!("{mib} MiB: {code:?}: {text}"),
        }
        // A limit that is just enough stands for the others.
        if refused > 0 && trained > 0 && !thorough::is_wanted() {
            break;
        }
    }
    assert!(refused > 0, "no limit was just enough without the copy");
}
