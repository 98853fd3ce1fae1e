//! Runs that resume with more or less training data, or for longer.

use std::fs;
use std::process::Stdio;

use dtrain_common::manifest::Manifest;
use dtrain_tests::process::{Signal, expect_exit_code, signal};
use dtrain_tests::runs::{Run, Sandbox};
use serde_json::Value;

const RECIPE: &str = r#"
task = "lm"
[data]
root = "text.txt"
test_fraction = 0.2
[model]
name = "gpt"
width = 16
depth = 1
heads = 2
context = 8
[train]
effective_batch = 4
epochs = 2
[optim]
lr = 0.01
schedule = { name = "linear" }
[log]
every_steps = 1
[checkpoint]
keep = 1
keep_every = "2 epochs"
"#;

/// Writes a text of which `steps` steps are an epoch.
fn write_text(sandbox: &Sandbox, steps: usize) {
    let (windows, context) = (4 * steps, 8);
    let characters = (windows * context + 1) * 10 / 8 + 3;
    let text: String = "hello world, ".chars().cycle().take(characters).collect();
    fs::write(sandbox.path("text.txt"), text).unwrap();
}

fn steps_per_epoch(run: &Run) -> u64 {
    run.plan()["steps_per_epoch"].as_u64().unwrap()
}

/// Resumes and returns the run, and what it printed.
fn train(sandbox: &Sandbox, sets: &[&str]) -> (Run, String) {
    let text = expect_exit_code(&sandbox.launch(1, "run", sets), 0);
    (sandbox.run("run"), text)
}

#[test]
fn epochs_continue_with_more_and_less_data() {
    let sandbox = Sandbox::new(RECIPE);
    write_text(&sandbox, 10);
    let (run, _) = train(&sandbox, &[]);
    assert_eq!((steps_per_epoch(&run), run.result().steps), (10, Some(20)));

    // Two more epochs with less than half of the text; before, all steps were done.
    write_text(&sandbox, 4);
    let (run, text) = train(&sandbox, &["train.epochs=4"]);
    assert_eq!((steps_per_epoch(&run), run.result().steps, run.result().epochs), (4, Some(28), Some(4.0)));
    assert!(text.contains("continues after 2 epochs and 0 of 4 steps: 8 steps left of 28"), "{text}");
    // The schedule had ended: half of the longer line is left.
    assert!(text.contains("the checkpoint's schedule was over, with a learning rate of 5.0000e-4"), "{text}");
    assert!(
        text.contains("5.0000e-3 at step 21") && text.contains("train.epochs is 2 there and 4 here"),
        "{text}"
    );
    // The remedy: another run, from the weights.
    let weights = text.split("model.weights = \"").nth(1).unwrap().split('"').next().unwrap();
    let fresh = sandbox.train(1, "fresh", &[&format!("model.weights={weights}"), "train.epochs=1"]);
    let own = fresh.per_step("lr");
    assert!(own.len() == 4 && (own[0] - 0.01).abs() < 1e-9, "{own:?}");
    assert!(fresh.per_step("loss")[0] < run.per_step("loss")[0], "it begins with the weights");
    let rates = run.per_step("lr");
    assert!((rates[20] - 0.005).abs() < 1e-9 && (rates[27] - 0.005 / 8.0).abs() < 1e-9, "{rates:?}");
    let epochs = run.per_step("epoch");
    assert_eq!((epochs[19], epochs[20], epochs[24], epochs[27]), (2.0, 3.0, 4.0, 4.0));
    let evaluated: Vec<_> = run.evaluations().iter().map(|eval| eval["step"].as_u64().unwrap()).collect();
    assert_eq!(evaluated, [10, 20, 24, 28]);
    // Windows of two epochs each, of 20 and then of 8 steps.
    keeps(&sandbox, &run, &[20, 28]);

    // The same command again: nothing is left, and nothing has moved.
    let (run, text) = train(&sandbox, &["train.epochs=4"]);
    assert!(text.contains("all 28 steps are done"), "{text}");
    assert_eq!((run.result().steps, run.per_step("lr")), (Some(28), rates));

    // More data than ever, and a limit of steps.
    write_text(&sandbox, 12);
    let (run, text) = train(&sandbox, &["train.epochs=6", "train.steps=45"]);
    assert!(text.contains("continues after 4 epochs and 0 of 12 steps: 17 steps left of 45"), "{text}");
    assert_eq!(run.result().steps, Some(45));
    let manifest: Value =
        serde_json::from_slice(&fs::read(run.0.latest().join("manifest.json")).unwrap()).unwrap();
    assert_eq!((manifest["epoch"].as_u64(), manifest["step_in_epoch"].as_u64()), (Some(5), Some(5)));
    let periods: Vec<_> =
        manifest["data_periods"].as_array().unwrap().iter().map(|period| period["step"].as_u64()).collect();
    assert_eq!(periods, [Some(0), Some(20), Some(28)]);
    keeps(&sandbox, &run, &[20, 28, 45]);
}

/// Checks the steps of the checkpoints, of which `ckpt prune` removes none.
#[track_caller]
fn keeps(sandbox: &Sandbox, run: &Run, steps: &[u64]) {
    assert_eq!(run.0.steps().unwrap(), steps);
    let text = expect_exit_code(&sandbox.ckpt(&["prune", "run"]), 0);
    assert!(text.contains("nothing to remove"), "{text}");
}

/// Less data ends an epoch in which a run was stopped: it is evaluated, also if that ends the run.
#[test]
fn an_epoch_that_less_data_ends_is_evaluated() {
    let sandbox = Sandbox::new(RECIPE);
    for (name, epochs) in [("over", 1), ("goes-on", 2)] {
        write_text(&sandbox, 4000);
        let mut launcher = sandbox.command(1, name, &[], &[]).stdout(Stdio::null()).spawn().unwrap();
        sandbox.run(name).wait_for_lines(6);
        signal(launcher.id(), Signal::TERM);
        assert_eq!(launcher.wait().unwrap().code(), Some(75));
        let stopped = sandbox.run(name).result().steps.unwrap();
        assert!((6..4000).contains(&stopped), "{stopped}");

        write_text(&sandbox, 5);
        let run = sandbox.train(1, name, &[&format!("train.epochs={epochs}")]);
        let of: Vec<_> = run.evaluations().iter().map(|eval| eval["step"].as_u64().unwrap()).collect();
        assert_eq!(of, [stopped, stopped + 5][..epochs], "{name}");
        assert!(run.result().final_metrics.contains_key("loss"), "{:?}", run.result());
        assert!(Manifest::read(&run.0.latest()).unwrap().metrics.contains_key("loss"));
    }
}

#[test]
fn a_folder_of_digits_is_a_folder() {
    let sandbox = Sandbox::new(RECIPE);
    write_text(&sandbox, 4);
    fs::rename(sandbox.path("text.txt"), sandbox.path("2025")).unwrap();
    let run = sandbox.train(1, "run", &["data.root=2025", "train.epochs=1"]);
    assert_eq!(run.result().steps, Some(4));
}
