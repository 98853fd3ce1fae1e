//! Rules for whole tensors in real runs, and the test of a range of learning rates.

use std::fs;
use std::process::Output;

use dtrain_tests::process::{expect_exit_code, output_text};
use dtrain_tests::programs::worker;
use dtrain_tests::runs::{Sandbox, TINY, assert_close, gpt, resnet18};
use dtrain_tests::trainings::{distance, tensors};
use serde_json::Value;

use super::bad_input::refused_by;

const MUON: [&str; 3] = ["optim.name=muon", "optim.lr=0.01", "optim.adamw_lr=0.003"];
const SHARDED: &str = "memory.shard_optimizer=true";
const OPTIMIZER: &str = "optimizer-00000-of-00001.safetensors";

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&MUON, more].concat()
}

#[test]
fn muon_divides_whole_matrices_and_resumes_to_the_same_bits() {
    let sandbox = Sandbox::new(&gpt(6, "[checkpoint]\nevery = \"3 steps\"\nkeep = 9\n"));
    for ranks in [3, 2] {
        let name = |what: &str| format!("{what}-{ranks}");
        let whole = sandbox.train(ranks, &name("whole"), &MUON);
        let shards = sandbox.train(ranks, &name("shards"), &with(&[SHARDED]));
        // The same gradients, and the same products of each matrix.
        assert!(whole.weights() == shards.weights(), "{ranks} ranks");
        assert!(distance(&tensors(&whole, OPTIMIZER), &tensors(&shards, OPTIMIZER)) == 0.0);
        let half = sandbox.path(&name("shards")).join("checkpoints/step-00000003");
        let resume = ["--resume", half.to_str().unwrap()];
        // With shards, and without them, from the same checkpoint.
        for sets in [with(&[SHARDED]), MUON.to_vec()] {
            let run = name(&format!("resumed-{}", sets.len()));
            expect_exit_code(&sandbox.launch_with(ranks, &run, &sets, &resume), 0);
            assert!(sandbox.run(&run).weights() == whole.weights(), "{ranks} ranks, {sets:?}");
        }
    }
    let plan = sandbox.run("whole-3").plan();
    let state = tensors(&sandbox.run("whole-3"), OPTIMIZER);
    let of = |prefix: &str| {
        let all = state.iter().filter(|(name, _)| name.starts_with(prefix));
        all.map(|(name, tensor)| (name[prefix.len()..].to_owned(), tensor.numel() as u64)).collect::<Vec<_>>()
    };
    let (matrices, means, squares) = (of("momentum_buffer."), of("exp_avg."), of("exp_avg_sq."));
    assert_eq!((matrices.len(), &means), (8, &squares));
    assert!(matrices.iter().all(|(name, _)| means.iter().all(|(other, _)| other != name)));
    let elements = |all: &[(String, u64)]| all.iter().map(|(_, elements)| elements).sum::<u64>();
    let wanted = 4 * (elements(&matrices) + 2 * elements(&means));
    assert_eq!(plan["predicted_bytes"]["optimizer"], wanted);
    // Other ranks, in full precision: the last digits of float32.
    let full = with(&["optim.newton_schulz=full", SHARDED]);
    let (one, three) = (sandbox.train(1, "one", &full), sandbox.train(3, "three", &full));
    assert_close(&one.per_step("loss"), &three.per_step("loss"), 1e-4);
}

#[test]
fn a_run_names_the_rules_and_refuses_what_has_no_matrices() {
    let sandbox = Sandbox::new(TINY);
    // TINY has SGD with momentum.
    let muon = "optim.name=muon";
    let output = sandbox.launch(1, "run", &[muon]);
    expect_exit_code(&output, 0);
    let text = output_text(&output);
    assert!(text.contains("Muon updates 4 matrices of"), "{text}");
    assert!(text.contains("other tensors of") && text.contains("among them"), "{text}");
    let refused = |sandbox: &Sandbox, sets: &[&str], words: &[&str]| {
        refused_by(&mut sandbox.command(1, "refused", sets, &[]), words);
    };
    let group = r#"optim.group=[{ match = "*.bias", muon = true }]"#;
    refused(&sandbox, &[muon, group], &["optim.group", "has 1 dimension", "Muon needs a matrix"]);
    refused(&sandbox, &[muon, "optim.adjust_lr=rms"], &["optim.adjust_lr", "match_rms_adamw"]);
    refused(&sandbox, &["optim.clip=1", "optim.clip_adaptive=0.1"], &["optim.clip_adaptive", "remove one"]);
    let convolutions = Sandbox::new(&resnet18());
    refused(&convolutions, &[muon, "optim.lr=0.01"], &["optim.name", "optim.convolutions = true"]);
}

fn test_range(sandbox: &Sandbox, words: &[&str]) -> Output {
    let mut command = sandbox.dtrain(&["profile", "recipe.toml"]);
    command.args(words).env("DTRAIN_WORKER", worker()).output().unwrap()
}

#[test]
fn a_range_of_rates_is_tested_on_any_ranks_and_leaves_nothing() {
    let sandbox = Sandbox::new(TINY);
    let losses = |ranks: &str, more: &[&str]| {
        let output =
            test_range(&sandbox, &[&["--lr-range", "1e-4:10:30", "--nproc", ranks, "--json"], more].concat());
        expect_exit_code(&output, 0);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&answer["planned"], &answer["effective_batch"]), (&Value::from(30), &Value::from(16)));
        let steps = answer["steps"].as_array().unwrap().clone();
        let of = |key: &str| steps.iter().map(|step| step[key].as_f64().unwrap()).collect::<Vec<_>>();
        let rates = of("lr");
        assert!((rates[0] - 1e-4).abs() < 1e-12 && rates.windows(2).all(|pair| pair[1] > pair[0]));
        (of("loss"), answer)
    };
    let (one, answer) = losses("1", &[]);
    // More than an epoch of 6 steps; from then on rounding errors grow with the rate.
    let (two, _) = losses("2", &[]);
    assert_close(&one[..12], &two[..12], 1e-4);
    assert!(answer["steepest"].is_number() && answer["largest_stable"].is_number(), "{answer}");
    // The recipe's scaling is left out of the rates, and the setting follows from it.
    let (scaled, other) =
        losses("1", &["--set", "optim.scaling=linear", "--set", "optim.reference_batch=64"]);
    assert_eq!((scaled, &other["lr_for_rate_1"]), (one, &Value::from(4.0)));
    let text = test_range(&sandbox, &["--lr-range", "1e-4:10:30", "--nproc", "2"]);
    expect_exit_code(&text, 0);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("on 2 x CPU") && text.contains("--set optim.lr="), "{text}");
    let left: Vec<_> =
        fs::read_dir(sandbox.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["recipe.toml"]);
    for (range, words) in [
        ("1:1e-3", &["--lr-range", "does not rise"][..]),
        ("1e-3:inf", &["no learning rate"]),
        ("0:1", &["no learning rate"]),
        ("1e-3:1:5", &["at least 20"]),
    ] {
        let output = test_range(&sandbox, &["--lr-range", range]);
        let text = expect_exit_code(&output, 2);
        assert!(words.iter().all(|word| text.contains(word)), "{range}: {text}");
    }
    let both = test_range(&sandbox, &["--lr-range", "1e-3:1", "--find-optimal"]);
    assert!(expect_exit_code(&both, 2).contains("cannot be used with"));
}
