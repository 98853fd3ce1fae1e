//! BatchNorm over all ranks equals one rank with the whole batch, no rank hangs on an uneven batch, and a
//! dependence on the micro-batch is reported before the run.

use dtrain_test_kit::thorough;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Run, Sandbox, resnet18};
use dtrain_tests::trainings::{distance, tensors};

const MODEL: &str = "model.safetensors";
const SYNCED: &str = "model.batchnorm=\"synced\"";

/// A U-Net: the smallest network with batch norm.
const UNET: &str = r#"
task = "segment"
[data]
kind = "generated"
classes = 3
train_samples = 96
test_samples = 37
image_size = 16
workers = 1
[model]
width = 4
depth = 2
[train]
effective_batch = 16
epochs = 1
seed = 3
[optim]
name = "sgd"
lr = 0.001
momentum = 0.9
[log]
every_steps = 1
"#;

/// Returns a sandbox for the U-Net and, in a thorough check, one for ResNet-18.
fn sandboxes() -> Vec<Sandbox> {
    thorough::cases(&[UNET.to_owned(), resnet18()], 1).iter().map(|recipe| Sandbox::new(recipe)).collect()
}

fn warnings(run: &Run) -> Vec<String> {
    serde_json::from_value(run.plan()["warnings"].clone()).unwrap()
}

fn assert_same(one: &[f64], other: &[f64], what: &str) {
    assert_eq!(one.len(), other.len(), "{what}");
    for (step, (a, b)) in one.iter().zip(other).enumerate() {
        assert!((a / b - 1.0).abs() < 1e-4, "{what}, step {}: {a} against {b}", step + 1);
    }
}

#[test]
fn synced_batch_norm_equals_the_whole_batch() {
    for sandbox in &sandboxes() {
        for batch in thorough::cases(&[13, 24], 1) {
            let batch = format!("train.effective_batch={batch}");
            let train = |ranks: usize, more: &[&str]| {
                let sets = [&[batch.as_str(), "train.steps=5"], more].concat();
                sandbox.train(ranks, &format!("{ranks}-{batch}-{}", more.len()), &sets)
            };
            let alone = train(1, &[SYNCED]);
            for &ranks in thorough::cases(&[3, 2], 1) {
                let together = train(ranks, &[SYNCED]);
                assert!(warnings(&together).is_empty(), "{:?}", warnings(&together));
                let what = format!("{ranks} ranks, {batch}");
                assert_same(&together.per_step("loss"), &alone.per_step("loss"), &what);
                assert_same(&together.per_step("grad_norm"), &alone.per_step("grad_norm"), &what);
                let evaluated = |run: &Run| run.evaluations()[0]["loss"].as_f64().unwrap();
                assert!((evaluated(&together) / evaluated(&alone) - 1.0).abs() < 1e-3, "{what}");
            }
            // It differs from BatchNorm within each rank.
            let local = train(2, &[]);
            let difference = local.per_step("loss")[0] / alone.per_step("loss")[0] - 1.0;
            assert!(difference.abs() > 1e-4, "{batch}: {difference:e}");
        }
    }
}

#[test]
fn group_batch_norm_does_not_depend_on_the_cut() {
    // Groups over several ranks, groups within one rank, and steps that end with a smaller group.
    type Cuts<'a> = &'a [(usize, Option<usize>)];
    let cases: [(usize, &str, Cuts<'_>); 3] = [
        (20, "group:8", &[(2, Some(4)), (3, None), (1, Some(8)), (2, None)]),
        (16, "group:16", &[(2, None), (3, None)]),
        (24, "group:8", &[(1, Some(8)), (1, Some(16)), (2, None), (2, Some(4)), (3, None)]),
    ];
    for sandbox in &sandboxes() {
        for &(batch, group, cuts) in thorough::cases(&cases, 2) {
            let train = |ranks: usize, micro: Option<usize>| {
                let batch = format!("train.effective_batch={batch}");
                let group = format!("model.batchnorm={group:?}");
                let micro = micro.map(|micro| format!("memory.micro_batch={micro}"));
                let mut sets = vec![batch.as_str(), group.as_str(), "train.steps=4"];
                sets.extend(micro.as_deref());
                let name = format!("{ranks} {}", sets.join(" ").replace([':', '"', '='], "-"));
                sandbox.train(ranks, &name, &sets)
            };
            let whole = train(1, None);
            for &(ranks, micro) in thorough::cases(cuts, cuts.len() / 2) {
                let cut = train(ranks, micro);
                assert!(warnings(&cut).is_empty(), "{:?}", warnings(&cut));
                let evaluated = |run: &Run| run.evaluations()[0]["loss"].as_f64().unwrap();
                let losses = |run: &Run| [run.per_step("loss"), vec![evaluated(run)]].concat();
                for (step, (a, b)) in std::iter::zip(losses(&cut), losses(&whole)).enumerate() {
                    let difference = (a / b - 1.0).abs();
                    assert!(
                        difference < 1e-5,
                        "{batch}, {group}, {ranks} ranks, {micro:?}, step {step}: {a} against {b}"
                    );
                }
            }
        }
        let sets = ["model.batchnorm=group:12", "memory.micro_batch=4", "train.effective_batch=24"];
        let text = expect_exit_code(&sandbox.launch(2, "refused", &sets), 2);
        assert!(text.contains("memory.micro_batch to 6 or more") && text.contains("group:8"), "{text}");
    }
}

#[test]
fn uneven_micro_steps_do_not_block_synced_batch_norm() {
    for sandbox in &sandboxes() {
        // The ranks have 7 and 6 samples: with micro-batches of 3, both take 3 micro-steps, although rank 1
        // alone would need 2. The last step of the epoch has 96 - 7 x 13 = 5 samples for 2 ranks.
        let sets = ["train.effective_batch=13", "memory.micro_batch=3", "train.epochs=1", SYNCED];
        let two = sandbox.train(2, "two", &sets);
        assert_eq!(two.per_step("samples").last(), Some(&96.0));
        let warned = warnings(&two);
        assert!(
            warned.len() == 1
                && warned[0].contains("over one micro-batch of every rank")
                && warned[0].contains("memory.micro_batch = 7"),
            "{warned:?}"
        );
    }
}

/// Trains a step, checks that the plan's warnings are in the log, and returns them.
fn warned(sandbox: &Sandbox, ranks: usize, name: &str, sets: &[&str]) -> String {
    let run = sandbox.train(ranks, name, &[&["train.steps=1"], sets].concat());
    let (warnings, log) = (warnings(&run), run.log(0));
    let lines = log.lines().filter(|line| line.contains("warning:")).count();
    assert_eq!(lines, warnings.len(), "{log}");
    for warning in &warnings {
        assert!(log.contains(warning), "{warning} is not in {log}");
    }
    warnings.join("\n")
}

#[test]
fn local_batch_norm_warns_about_the_micro_batch() {
    for sandbox in &sandboxes() {
        assert_eq!(warned(sandbox, 1, "whole", &[]), "");
        let two = warned(sandbox, 2, "two", &[]);
        assert!(two.contains("depends on the micro-batch") && two.contains("8 of the step's 16"), "{two}");
        assert!(two.contains("set model.batchnorm = \"synced\""), "{two}");
    }
}

/// The statistics of a trained network: its gradients, unlike those of before, do not depend on the cut.
#[test]
fn frozen_statistics_stay_and_no_cut_changes_the_result() {
    let sandbox = &sandboxes()[0];
    let first = sandbox.train(1, "first", &["train.steps=2"]);
    let weights = first.0.checkpoint(2).join("model.safetensors");
    let from = format!("model.weights={}", weights.display());
    let frozen = [from.as_str(), "model.batchnorm=frozen", "train.steps=3"];
    let whole = sandbox.train(1, "whole", &frozen);
    assert!(warnings(&whole).is_empty(), "{:?}", warnings(&whole));
    let (before, after) = (tensors(&first, MODEL), tensors(&whole, MODEL));
    let statistics: Vec<_> = before.keys().filter(|name| name.contains("running_")).collect();
    assert!(!statistics.is_empty() && statistics.iter().all(|name| before[*name] == after[*name]));
    assert!(before.iter().any(|(name, values)| name.ends_with("weight") && *values != after[name]));
    for &ranks in thorough::cases(&[3, 2], 1) {
        let sets = [&frozen[..], &["memory.micro_batch=1"]].concat();
        let other = sandbox.train(ranks, &format!("cut-{ranks}"), &sets);
        let apart = distance(&tensors(&other, MODEL), &after);
        assert!(apart < 1e-6, "{ranks} ranks: {apart}");
    }
}
