//! `model.loss`: losses of samples by name, in every cut of a step.

use dtrain_test_kit::thorough;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::Sandbox;
use dtrain_tests::trainings::{distance, tensors};

pub(crate) const CLASSIFY: &str = r#"
task = "classify"
[data]
kind = "generated"
classes = 4
image_size = 16
train_samples = 23
test_samples = 9
[model]
name = "vit"
width = 16
depth = 1
heads = 2
patch = 8
figures = [{ name = "recall" }, { name = "f1", positive = 1 }, { name = "calibration" }, { name = "average-precision" }]
[train]
effective_batch = 10
steps = 6
[optim]
name = "sgd"
lr = 0.1
"#;

/// Without BatchNorm by batches, which depends on the cut.
pub(crate) const SEGMENT: &str = r#"
task = "segment"
[data]
kind = "generated"
classes = 3
image_size = 16
train_samples = 23
test_samples = 9
[model]
width = 4
depth = 2
batchnorm = "frozen"
[train]
effective_batch = 10
steps = 6
[optim]
name = "sgd"
lr = 0.1
"#;

/// Ranks, and samples of a micro-batch. The first has ranks with unequal numbers.
const CUTS: [(usize, usize); 4] = [(3, 2), (1, 3), (2, 5), (2, 1)];

fn assert_equal_in_every_cut(recipe: &str, losses: &[&str]) {
    let sandbox = Sandbox::new(recipe);
    for (number, loss) in losses.iter().enumerate() {
        let loss = format!("model.loss={loss}");
        let whole = sandbox.train(1, &format!("{number}-whole"), &[&loss, "memory.micro_batch=10"]);
        for &(ranks, micro_batch) in thorough::cases(&CUTS, 1) {
            let cut = format!("memory.micro_batch={micro_batch}");
            let found = sandbox.train(ranks, &format!("{number}-{ranks}-{micro_batch}"), &[&loss, &cut]);
            let [one, other] = [&whole, &found].map(|run| tensors(run, "model.safetensors"));
            let distance = distance(&one, &other);
            assert!(distance < 1e-5, "{loss} {ranks} {micro_batch}: {distance}");
            for (one, other) in whole.per_step("loss").iter().zip(found.per_step("loss")) {
                assert!((one - other).abs() < 1e-5, "{loss}: {one} {other}");
            }
            for (one, other) in whole.evaluations().iter().zip(found.evaluations()) {
                for (name, one) in one.as_object().unwrap().iter().filter(|(name, _)| *name != "eval_ms") {
                    let (one, other) = (one.as_f64(), other[name].as_f64());
                    let near = one.zip(other).is_none_or(|(one, other)| (one - other).abs() < 1e-5);
                    assert!(near, "{loss} {name}: {one:?} {other:?}");
                }
            }
        }
    }
}

#[test]
fn losses_of_classes_do_not_depend_on_the_cut() {
    assert_equal_in_every_cut(
        CLASSIFY,
        &[
            "{ cross-entropy = { smoothing = 0.1, class_weights = [0.2, 1, 3, 1] } }",
            "{ cross-entropy = { class_weights = [1, 2, 3, 4] }, focal = 0.5 }",
            "ordinal",
        ],
    );
}

#[test]
fn losses_of_pixels_do_not_depend_on_the_cut() {
    assert_equal_in_every_cut(
        SEGMENT,
        &[
            "{ focal = { class_weights = [0.2, 1, 3] } }",
            "{ cross-entropy = { class_weights = [0.2, 1, 3] }, dice = 0.5, boundary = { width = 2 } }",
        ],
    );
}

#[test]
fn wrong_losses_are_errors_before_the_training() {
    let sandbox = Sandbox::new(CLASSIFY);
    for (number, (loss, words)) in [
        (
            "{ focal = { class_weights = [1, 2] } }",
            "model.loss.focal.class_weights: expected a weight for each of the 4",
        ),
        ("{ focal = { class_weights = { cat = 2 } } }", "no class is named \"cat\""),
        ("{}", "the table has no loss"),
        (
            "dice",
            "task = \"classify\" takes \"cross-entropy\", \"focal\", \"ordinal\", \"program\", not \"dice\"",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let set = format!("model.loss={loss}");
        let text = expect_exit_code(&sandbox.launch(1, &number.to_string(), &[&set]), 2);
        assert!(text.contains(words), "{text}");
    }
}

/// The loss of a test is that of the checkpoint's stage, and the best checkpoint by the loss is not one of another loss.
#[test]
fn a_stage_has_its_own_loss_in_tests_and_for_the_best_checkpoint() {
    let recipe = SEGMENT.replace("steps = 6\n", "");
    let stages = "[checkpoint]\nevery = \"3 steps\"\nbest = \"min loss\"\n[[stage]]\nname = \"first\"\nsteps = 3\n\
                  loss = { dice = { smooth = 0.5 } }\n[[stage]]\nname = \"second\"\nsteps = 3\nloss = \"cross-entropy\"\n";
    let sandbox = Sandbox::new(&format!("{recipe}{stages}"));
    let run = sandbox.train(1, "run", &[]);
    let evaluations = run.evaluations();
    let loss =
        |step: u64| evaluations.iter().find(|line| line["step"] == step).unwrap()["loss"].as_f64().unwrap();
    assert!(loss(6) > loss(3), "the cross-entropy is the larger one: {} {}", loss(6), loss(3));
    assert_eq!(run.result().best.unwrap().step, 6);
    for step in [3, 6] {
        let output = sandbox.dtrain(&["eval", &format!("run@{step}"), "--json"]).output().unwrap();
        expect_exit_code(&output, 0);
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = found["loss"].as_f64().unwrap();
        assert!((found - loss(step)).abs() < 1e-6, "{step}: {found} and {}", loss(step));
    }
}
