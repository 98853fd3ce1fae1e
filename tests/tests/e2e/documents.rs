//! Lines of a text as samples: by length, and packed.

use std::fs;

use dtrain_test_kit::thorough;
use dtrain_tests::process::expect_exit_code;
use dtrain_tests::runs::{Sandbox, assert_close};

const RECIPE: &str = r#"
task = "lm"
[data]
root = "lines.txt"
documents = "lines"
[model]
name = "gpt"
width = 16
depth = 2
heads = 2
context = 24
dropout = 0.1
[train]
effective_batch = 6
epochs = 2
[optim]
name = "sgd"
lr = 0.1
[log]
every_steps = 1
"#;

/// Lines of 2 to 41 characters, with blank ones and two of one character.
fn lines() -> String {
    let words = "the small red cat follows a quiet old bird";
    let line = |number: usize| &words[..2 + number * 7 % 40];
    let lines: Vec<&str> = (0..40).map(line).collect();
    format!("x\n\n{}\r\n  \ny\n", lines.join("\n"))
}

/// Trains with the setting on one rank, and in other cuts. Returns what the first run printed, and its losses.
fn same_in_every_cut(set: &str) -> (String, Vec<f64>) {
    same_with(RECIPE, set)
}

fn same_with(recipe: &str, set: &str) -> (String, Vec<f64>) {
    let sandbox = Sandbox::new(recipe);
    fs::write(sandbox.path("lines.txt"), lines()).unwrap();
    fs::write(sandbox.path("more.txt"), lines().to_uppercase()).unwrap();
    let text = expect_exit_code(&sandbox.launch(1, "whole", &[set]), 0);
    let whole = sandbox.run("whole");
    let losses = whole.per_step("loss");
    for &ranks in thorough::cases(&[3, 1], 1) {
        let cut = sandbox.train(ranks, &format!("ranks-{ranks}"), &[set, "memory.micro_batch=1"]);
        assert_close(&losses, &cut.per_step("loss"), 1e-6);
        let [one, other] = [&whole, &cut].map(|run| run.result().final_metrics["loss"]);
        assert_close(&[one], &[other], 1e-6);
    }
    (text, losses)
}

#[test]
fn documents_by_length_are_the_same_in_every_cut() {
    let (text, buckets) = same_in_every_cut("data.sampler=buckets");
    assert!(text.contains("leaving out 2 documents of one token, which predicts nothing"), "{text}");
    let (_, shuffled) = same_in_every_cut("data.sampler=shuffled");
    assert_eq!(shuffled.len(), buckets.len());
    assert_ne!(shuffled, buckets);
}

#[test]
fn packed_documents_are_the_same_in_every_cut() {
    let (text, losses) = same_in_every_cut("data.pack=true");
    assert!(text.contains("40 lines packed into samples of 24 tokens"), "{text}");
    // Alone, the 36 training lines are 50 samples, which are 9 steps of 6.
    assert!(losses.len() < 2 * 9, "{losses:?}");
}

#[test]
fn texts_by_weight_are_the_same_in_every_cut() {
    let weigh = |weight: &str| {
        let sources = format!(
            "[[data.source]]\nroot = \"lines.txt\"\nweight = 1\n[[data.source]]\nroot = \"more.txt\"\nweight = {weight}\n"
        );
        RECIPE.replace("root = \"lines.txt\"\n", "") + &sources
    };
    let (text, losses) = same_with(&weigh("2.5"), "data.pack=true");
    assert!(text.contains("80 lines packed into samples of 24 tokens"), "{text}");
    let (_, others) = same_with(&weigh("1"), "data.pack=true");
    assert_eq!(losses.len(), others.len());
    assert_ne!(losses, others);
}
