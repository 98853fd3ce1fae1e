//! `dtrain launch --try` and `--overfit`: before a run.

use std::fs;
use std::path::PathBuf;

use dtrain_tests::process::{expect_exit_code, output_text};
use dtrain_tests::runs::{Sandbox, TINY, assert_close, gpt};
use serde_json::Value;

/// Runs `dtrain launch recipe.toml` with these words on the CPU.
fn launch(sandbox: &Sandbox, words: &[&str]) -> std::process::Output {
    let mut command = sandbox.dtrain(&["launch", "recipe.toml"]);
    command.args(words).env("CUDA_VISIBLE_DEVICES", "").output().unwrap()
}

/// Returns what is in the sandbox besides the recipe.
fn left(sandbox: &Sandbox) -> Vec<PathBuf> {
    let entries = fs::read_dir(sandbox.path("")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| !path.ends_with("recipe.toml")).collect()
}

#[test]
fn a_try_takes_two_steps_of_everything_and_leaves_nothing() {
    let stages = "[test]\n[ema]\ndecay = 0.5\n[[stage]]\nname = \"head\"\nepochs = 3\nfreeze = [\"*.bias\"]\n\
                  [[stage]]\nname = \"all\"\nepochs = 20\nunfreeze = [{ at = 0.5, match = \"*\" }]\n";
    let recipe = TINY.replace("epochs = 1\n", "");
    let sandbox = Sandbox::new(&format!("{recipe}{stages}"));
    let output = launch(&sandbox, &["--nproc", "2", "--try"]);
    let text = expect_exit_code(&output, 0);
    let shown = String::from_utf8_lossy(&output.stdout);
    let rows = [
        "settings",
        "data and model",
        "stage head",
        "stage all",
        "evaluation",
        "test",
        "checkpoint",
        "resume",
    ];
    for part in rows {
        assert!(shown.lines().any(|line| line.contains(part) && line.contains(" ok ")), "{part} in {text}");
    }
    assert!(shown.contains("step 4 again: the same weights, bit by bit"), "{text}");
    assert!(shown.contains("32 of 37 samples of test"), "{text}");
    assert!(shown.contains("prediction               not tried"), "{text}");
    // 96 samples in steps of 16, 23 epochs.
    assert!(shown.contains("138 steps of") && shown.contains("23 checkpoints"), "{text}");
    assert_eq!(left(&sandbox), Vec::<PathBuf>::new());
}

#[test]
fn a_try_predicts_in_the_letters_of_the_text_and_runs_no_command_of_the_user() {
    let recipe = gpt(4, "on_end = \"touch ended\"\ncommand = \"cat > lines\"\n");
    let generated = "kind = \"generated\"\ntrain_samples = 32\ntest_samples = 4\n";
    assert!(recipe.contains(generated));
    let sandbox = Sandbox::new(&recipe.replace(generated, "root = \"book.txt\"\ntokenizer = \"chars\"\n"));
    fs::write(sandbox.path("book.txt"), "жили были ".repeat(100)).unwrap();
    // Colours that the environment forces are not in the lines that the try reads.
    let mut command = sandbox.dtrain(&["launch", "recipe.toml", "--try", "--on-end", "touch ended"]);
    command.env("CUDA_VISIBLE_DEVICES", "").env("CLICOLOR_FORCE", "1");
    let text = expect_exit_code(&command.output().unwrap(), 0);
    assert!(text.lines().any(|line| line.contains("prediction") && line.contains(" ok ")), "{text}");
    let left = left(&sandbox);
    assert!(left.len() == 1 && left[0].ends_with("book.txt"), "{left:?}");
}

#[test]
fn a_failed_try_names_the_part_and_keeps_its_files() {
    let sandbox = Sandbox::new(TINY);
    let output =
        launch(&sandbox, &["--try", "--set", "checkpoint.best=max nonsense", "--run-dir", "out/run"]);
    let text = expect_exit_code(&output, 2);
    let cause = "checkpoint.best";
    assert!(
        text.contains("dtrain: data and model failed with exit code 2") && text.contains(cause),
        "{text}"
    );
    let folder = fs::read_dir(sandbox.path("out")).unwrap().next().unwrap().unwrap().path();
    assert!(folder.join("run.log").is_file() && !sandbox.path("out/run").exists(), "{text}");
}

#[test]
fn an_overfit_check_trains_and_evaluates_the_same_few_samples() {
    let sandbox = Sandbox::new(&TINY.replace("lr = 0.001", "lr = 0.1"));
    let run = |name: &str, ranks: &str| {
        let words = [
            "--overfit",
            "4",
            "--set",
            "train.steps=40",
            "--nproc",
            ranks,
            "--run-dir",
            name,
            "--set",
            "data.augment=flip",
        ];
        let output = launch(&sandbox, &words);
        (expect_exit_code(&output, 0), sandbox.run(name))
    };
    let (text, one) = run("one", "1");
    assert!(text.contains("overfit check (train.overfit): trains on 4 training samples of all"), "{text}");
    let result: Value = serde_json::from_slice(&fs::read(one.0.result()).unwrap()).unwrap();
    let plan: Value = serde_json::from_slice(&fs::read(one.0.plan()).unwrap()).unwrap();
    assert_eq!((&plan["overfit"], &plan["train_samples"]), (&4.into(), &4.into()));
    assert_eq!(
        (&result["overfit"]["samples"], &result["overfit"]["verdict"]),
        (&4.into(), &"passed".into()),
        "{text}"
    );
    assert!(text.contains("overfit check passed: the loss of 4 samples went from"), "{text}");
    assert!(fs::read_to_string(one.0.recipe()).unwrap().contains("overfit = 4"));
    let evaluations = one.evaluations();
    assert!(evaluations.iter().all(|eval| eval["set"] == "train" && eval["samples"] == 4), "{evaluations:?}");
    // The same samples in every step, on any number of ranks.
    let (_, two) = run("two", "2");
    assert_close(&one.per_step("loss"), &two.per_step("loss"), 1e-4);
    // No check resumes as a training.
    let output = sandbox.launch(1, "one", &[]);
    assert!(output_text(&output).contains("train.overfit"), "{}", output_text(&output));
    assert_eq!(output.status.code(), Some(2));
}
