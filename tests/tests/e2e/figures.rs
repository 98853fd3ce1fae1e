//! `model.figures`: figures by name, of sums and of all test samples.

use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Run, Sandbox, TINY};
use serde_json::Value;

/// Evaluates four times, and keeps the model with the largest area.
const BEST: &str = "[checkpoint]\nevery = \"3 steps\"\nbest = \"max auc\"\n";

/// Two classes, and the figures of the test.
fn sandbox() -> Sandbox {
    let figures =
        "[model]\nfigures = [{ name = \"auc\" }, { name = \"accuracy\", top = 1, label = \"hits\" }]\n";
    let recipe = TINY.replace("classes = 4", "classes = 2").replace("seed = 3", "seed = 4");
    let recipe = recipe.replace("epochs = 1", "epochs = 2").replace("[model]\n", figures);
    Sandbox::new(&format!("{recipe}{BEST}"))
}

fn figures(line: &Value) -> [f64; 3] {
    ["auc", "hits", "accuracy"].map(|name| line[name].as_f64().unwrap_or_else(|| panic!("{name} in {line}")))
}

/// Returns the step of the evaluation with the largest area.
fn largest(run: &Run) -> u64 {
    let areas = run.evaluations().into_iter().map(|line| (figures(&line)[0], line["step"].as_u64().unwrap()));
    // The first of equal ones.
    areas.reduce(|best, next| if next.0 > best.0 { next } else { best }).unwrap().1
}

#[test]
fn figures_are_those_of_one_rank_in_every_cut_and_choose_the_best_checkpoint() {
    let sandbox = sandbox();
    let whole = sandbox.train(1, "whole", &["memory.micro_batch=16"]);
    let lines = whole.evaluations();
    assert_eq!(lines.len(), 4);
    for line in &lines {
        let [auc, hits, accuracy] = figures(line);
        assert!(0.5 < auc && auc < 1.0 && hits == accuracy, "{line}");
    }
    let cut = sandbox.train(3, "cut", &["memory.micro_batch=2"]);
    for (line, other) in lines.iter().zip(cut.evaluations()) {
        for (a, b) in figures(line).into_iter().zip(figures(&other)) {
            assert!((a - b).abs() < 1e-12, "{line} {other}");
        }
    }
    for run in [&whole, &cut] {
        let result = run.result();
        let best = result.best.unwrap();
        assert_eq!((best.step, best.by.figure.as_str()), (largest(run), "auc"));
        assert_eq!(result.final_metrics["auc"], figures(run.evaluations().last().unwrap())[0]);
    }
    // Another evaluation of the same weights.
    let words = ["eval", "recipe.toml", "--checkpoint", "whole", "--nproc", "2", "--batch", "5", "--json"];
    let output = sandbox.dtrain(&words).output().unwrap();
    expect_exit_code(&output, 0);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (a, b) in figures(&found).into_iter().zip(figures(lines.last().unwrap())) {
        assert!((a - b).abs() < 1e-12, "{found}");
    }
}

#[test]
fn figures_that_do_not_fit_are_errors_with_a_remedy() {
    let sandbox = sandbox();
    for (number, (figure, words)) in [
        ("name = \"auc\", positive = 2", "set positive below 2"),
        ("name = \"auc\", output = \"logit\"", "did you mean `logits`?"),
        ("name = \"auc\", classes = \"sex\"", "model.figures (auc) names the classes \"sex\""),
        ("name = \"auc\", label = \"accuracy\"", "the task has no figure \"auc\"; use one of loss, accuracy"),
    ]
    .into_iter()
    .enumerate()
    {
        let set = format!("model.figures=[{{ {figure} }}]");
        let text = expect_exit_code(&sandbox.launch(1, &number.to_string(), &[&set]), 2);
        assert!(text.contains(words), "{text}");
    }
}
