//! Validation samples, more test sets, an early end, and evaluations of their own.

use dtrain_test_kit::process::{expect_exit_code, output_text};
use dtrain_test_kit::thorough;
use dtrain_tests::runs::{Run, Sandbox, assert_close};
use serde_json::{Value, json};

use crate::bad_input::{folder_recipe, image_folder};

/// Without a learning rate the loss never falls.
const NO_PROGRESS: [&str; 3] = ["optim.lr=0", "train.epochs=9", "optim.weight_decay=0"];

fn data() -> Sandbox {
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 24, 5);
    // The same images under another name.
    for class in ["dark", "light"] {
        let (from, to) = (format!("data/test/{class}"), format!("data/night/{class}"));
        std::fs::create_dir_all(sandbox.path(&to)).unwrap();
        for name in ["000.png", "001.png", "002.png"] {
            std::fs::copy(sandbox.path(&format!("{from}/{name}")), sandbox.path(&format!("{to}/{name}")))
                .unwrap();
        }
    }
    sandbox
}

fn tests(run: &Run) -> Vec<Value> {
    run.metrics().iter().filter_map(|line| line.get("test").cloned()).collect()
}

#[test]
fn the_training_ends_by_validation_samples_and_is_tested_by_others() {
    let sandbox = data();
    let sets = [
        "data.val=0.3",
        "data.tests.night=night",
        "train.stop_early.patience=2",
        "test.weights=last",
        "checkpoint.keep=1",
    ];
    let mut curves = Vec::new();
    for &ranks in thorough::cases(&[2, 1, 3], 2) {
        let name = format!("ranks-{ranks}");
        let run = sandbox.train(ranks, &name, &[&sets[..], &NO_PROGRESS].concat());
        let evaluations = run.evaluations();
        let of = |key: &str| evaluations.iter().map(|eval| eval[key].clone()).collect::<Vec<_>>();
        assert_eq!(of("set"), vec![json!("val"); 3]);
        let (result, plan) = (run.result(), run.plan());
        // One evaluation, and two without an improvement.
        let per_epoch = plan["steps_per_epoch"].as_u64().unwrap();
        assert_eq!((result.steps, result.stopped_early), (Some(3 * per_epoch), true));
        assert_eq!(plan["val_samples"].as_u64().unwrap() + plan["train_samples"].as_u64().unwrap(), 48);
        assert_eq!(of("samples"), vec![plan["val_samples"].clone(); 3]);
        let tested = tests(&run);
        assert_eq!(
            tested.iter().map(|test| test["samples"].clone()).collect::<Vec<_>>(),
            [json!(10), json!(6)]
        );
        assert_eq!([&tested[0]["set"], &tested[1]["set"]], [&Value::Null, &json!("night")]);
        assert_eq!(result.tests["night"].0["loss"], tested[1]["loss"].as_f64().unwrap());
        assert_eq!(result.test["loss"], tested[0]["loss"].as_f64().unwrap());
        let (steps, evals) = (run.per_step("loss"), of("loss"));
        let evals = evals.iter().filter_map(Value::as_f64);
        curves.push(steps.into_iter().chain(evals).chain([result.test["loss"]]).collect::<Vec<_>>());
        // The run is complete: another launch takes no step.
        let again = sandbox.launch(ranks, &name, &[&sets[..], &NO_PROGRESS].concat());
        let text = expect_exit_code(&again, 0);
        assert!(text.contains("the training ends early: 2 evaluations"), "{text}");
        assert_eq!(run.result().steps, Some(3 * per_epoch));
    }
    curves.iter().skip(1).for_each(|curve| assert_close(&curves[0], curve, 1e-6));
    let output = sandbox.dtrain(&["eval", "recipe.toml", "--checkpoint", "ranks-2", "--json"]);
    let mut output = { output };
    output.args(["--set", "data.val=0.3", "--set", "data.tests.night=night"]);
    let output = output.output().unwrap();
    let text = expect_exit_code(&output, 0);
    let lines: Vec<Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!((&lines[0]["samples"], &lines[1]["set"]), (&json!(10), &json!("night")));
}

#[test]
fn a_resumed_run_ends_early_at_the_same_step() {
    let sandbox = data();
    let sets =
        [&["data.val=0.3", "train.stop_early.patience=3", "checkpoint.every=2 steps"], &NO_PROGRESS[..]]
            .concat();
    let whole = sandbox.train(1, "whole", &sets).result();
    assert_eq!((whole.steps, whole.stopped_early), (Some(8), true));
    sandbox.train(1, "parts", &[&sets[..], &["train.steps=5"]].concat());
    let resumed = sandbox.train(2, "parts", &sets).result();
    // The shorter run was also evaluated at its end.
    assert_eq!((resumed.steps, resumed.stopped_early), (Some(6), true));
    // A new run from the checkpoint counts anew, on all ranks.
    let last = sandbox.run("whole").0.checkpoint(8);
    let from = sandbox.launch_with(2, "new", &sets, &["--resume", last.to_str().unwrap()]);
    expect_exit_code(&from, 0);
    let from = sandbox.run("new").result();
    assert_eq!((from.steps, from.stopped_early), (Some(16), true));
}

#[test]
fn evaluations_have_their_own_turns_figures_and_time() {
    let sandbox = data();
    let sets = [
        "train.epochs=9",
        "train.steps=6",
        "checkpoint.every=4 steps",
        "evaluate.every=3 steps",
        "evaluate.figures=[]",
        "evaluate.batch=2",
    ];
    let run = sandbox.train(2, "run", &sets);
    let evaluations = run.evaluations();
    let steps: Vec<_> = evaluations.iter().filter_map(|eval| eval["step"].as_u64()).collect();
    assert_eq!(steps, [3, 6]);
    assert!(evaluations.iter().all(|eval| eval["loss"].is_number() && eval.get("accuracy").is_none()));
    assert!(!run.0.checkpoint(3).exists() && run.0.checkpoint(4).exists() && run.0.checkpoint(6).exists());
    // The first evaluation takes far more than a millionth of the time, so only the last follows.
    let short = sandbox.launch(
        2,
        "short",
        &["train.epochs=9", "train.steps=6", "checkpoint.every=1 steps", "evaluate.share=0.000001"],
    );
    assert!(
        expect_exit_code(&short, 0).contains("no evaluation: earlier ones took"),
        "{}",
        output_text(&short)
    );
    let steps: Vec<_> =
        sandbox.run("short").evaluations().iter().filter_map(|eval| eval["step"].as_u64()).collect();
    assert_eq!(steps, [1, 6]);
    let unknown = sandbox.launch(1, "unknown", &["evaluate.figures=[\"acuracy\"]"]);
    assert!(expect_exit_code(&unknown, 2).contains("evaluate.figures: the task has no figure \"acuracy\""));
    let best = sandbox.launch(1, "best", &["train.steps=2", "checkpoint.best=min loss"]);
    assert!(expect_exit_code(&best, 0).contains("checkpoint.best chooses by the test set"));
}
