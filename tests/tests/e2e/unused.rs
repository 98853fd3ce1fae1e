//! Parameters used never, only for some samples (so on some ranks), or only in some steps: no rank waits for
//! another, and the weights equal those of one rank. See `Branches` in `tests/src/bin/training-rank/nets.rs`.

use std::collections::BTreeMap;

use dtrain_test_kit::thorough;
use dtrain_tests::formula;
use dtrain_tests::runs::{Run, Sandbox};
use dtrain_tests::trainings::{distance, sets, tensors, train};
use tch::Tensor;

const RECIPE: &str = r#"
task = "custom"
[custom]
net = "branches"
samples = 60
double = true
[data]
workers = 1
[train]
effective_batch = 8
steps = 20
[optim]
name = "adamw"
lr = 1e-2
weight_decay = 0.1
[checkpoint]
every = "1000 steps"
[log]
every_steps = 1000
"#;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer-00000-of-00001.safetensors";

/// By name.
const VARIANTS: [(&str, &[&str]); 6] = [
    ("plain", &[]),
    ("sharded", &["memory.shard_optimizer=true", "reduce.bucket=\"1 KiB\"", "optim.clip=0.1"]),
    ("micro", &["memory.micro_batch=1"]),
    ("buckets", &["reduce.bucket=\"1 KiB\"", "reduce.first_bucket=\"1 KiB\""]),
    ("no-overlap", &["reduce.overlap=false"]),
    ("sgd", &["optim.name=\"sgd\"", "optim.lr=0.1", "optim.momentum=0.9"]),
];

fn updates(state: &BTreeMap<String, Tensor>, layer: &str) -> f64 {
    let [weight, bias] =
        ["weight", "bias"].map(|which| state[&format!("step.{layer}.{which}")].double_value(&[]));
    assert_eq!(weight, bias, "{layer}");
    weight
}

/// Checks that the layer without samples is unchanged in every bit.
fn assert_never_touched(run: &Run, name: &str) {
    let weights = tensors(run, MODEL);
    for (which, shape) in [("weight", vec![8, 8]), ("bias", vec![8])] {
        let key = format!("never.{which}");
        let start: Vec<f32> =
            formula::state_value(&key, &shape).into_iter().map(|value| value as f32).collect();
        let start = Tensor::from_slice(&start).to_kind(tch::Kind::Double).view(&shape[..]);
        assert!(weights[&key].equal(&start), "{name}: {key} was changed");
    }
    assert_eq!(updates(&tensors(run, OPTIMIZER), "never"), 0.0, "{name}");
}

#[test]
fn unused_parameters_end_equal_on_any_number_of_ranks() {
    let sandbox = Sandbox::new(RECIPE);
    let (variants, counts) = (thorough::cases(&VARIANTS, 3), thorough::cases(&[1, 3, 2], 2));
    for &ranks in counts {
        let list = variants.iter().map(|(name, values)| (format!("{name}-{ranks}"), sets(values))).collect();
        train(&sandbox, ranks, &[], &list);
    }
    for &(variant, _) in variants {
        let alone = sandbox.run(&format!("{variant}-1"));
        let state = tensors(&alone, OPTIMIZER);
        // The branches are used as described: in all steps, in most, in a few, and in none.
        let [trunk, some, few] = ["trunk", "some", "few"].map(|layer| updates(&state, layer));
        assert!(trunk == 20.0 && trunk > some && some > few && few > 0.0, "{trunk} {some} {few}");
        for &ranks in counts {
            let name = format!("{variant}-{ranks}");
            let run = sandbox.run(&name);
            assert_never_touched(&run, &name);
            for file in [MODEL, OPTIMIZER] {
                let difference = distance(&tensors(&run, file), &tensors(&alone, file));
                assert!(difference < 1e-12, "{name}, {file}: {difference:e}");
            }
        }
    }
}

#[test]
fn a_resumed_run_restores_update_counts() {
    let sandbox = Sandbox::new(RECIPE);
    let steps = |steps: &str, more: &[&str]| {
        let mut sets = sets(more);
        sets.push(format!("train.steps={steps}"));
        sets
    };
    let sharded = ["memory.shard_optimizer=true", "reduce.bucket=\"1 KiB\""];
    // Half the run with one number of ranks, the rest with another.
    train(&sandbox, 1, &[], &vec![("whole".into(), steps("20", &[])), ("1-to-3".into(), steps("9", &[]))]);
    train(&sandbox, 3, &[], &vec![("1-to-3".into(), steps("20", &sharded))]);
    let mut names = vec!["1-to-3"];
    if thorough::is_wanted() {
        let first = vec![("2-to-3".into(), steps("9", &sharded)), ("2-to-2".into(), steps("9", &[]))];
        train(&sandbox, 2, &[], &first);
        train(&sandbox, 3, &[], &vec![("2-to-3".into(), steps("20", &[]))]);
        train(&sandbox, 2, &[], &vec![("2-to-2".into(), steps("20", &[]))]);
        names.extend(["2-to-3", "2-to-2"]);
    }
    let whole = sandbox.run("whole");
    for name in names {
        let run = sandbox.run(name);
        assert_eq!(run.per_step("loss").len(), 20, "{name}");
        assert_never_touched(&run, name);
        for file in [MODEL, OPTIMIZER] {
            let difference = distance(&tensors(&run, file), &tensors(&whole, file));
            assert!(difference < 1e-12, "{name}, {file}: {difference:e}");
        }
    }
}
