//! Wrong usage: exit code 2, a remedy, nothing started and nothing written.

use crate::harness::Scene;
use dtrain_test_kit::programs;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Runs the launcher and expects an error with `message`.
#[track_caller]
fn refused(scene: &Scene, args: &[&str], message: &str) {
    scene.launch(args).expect_code(2).expect_stderr(message);
    scene.expect_nothing_written();
}

#[test]
fn numbers_of_workers_that_make_no_sense() {
    let scene = Scene::new();
    refused(&scene, &["--nproc", "0", "demo"], "at least 1 worker is needed");
    refused(&scene, &["--nproc", "x", "demo"], "a whole number of at least 1, or auto, gpu or cpu");
    refused(&scene, &["--nproc", "-1", "--", "true"], "a whole number of at least 1");
    refused(&scene, &["--nproc", "5000", "--", "true"], "at most 1024 workers");
    refused(
        &scene,
        &["--nproc", "2", "--stdin-rank", "2", "--", "true"],
        "--stdin-rank 2: no such rank; give 0 to 1",
    );
    refused(&scene, &["--nproc", "gpu", "--", "true"], "use --nproc N for N workers on the CPU");
}

#[test]
fn neither_or_both_of_recipe_and_program() {
    let scene = Scene::new();
    refused(&scene, &[], "dtrain launch -- PROGRAM ARGS");
    refused(&scene, &["--nproc", "2"], "nothing to launch");
    refused(&scene, &["demo", "--", "true"], "both a recipe (`demo`) and a program (`true`)");
}

#[test]
fn flags_without_effect() {
    let scene = Scene::new();
    refused(&scene, &["--set", "train.epochs=1", "--", "true"], "--set is for recipes");
    refused(&scene, &["--resume", "auto", "--", "true"], "--resume is for recipes");
    refused(&scene, &["--overfit", "8", "--", "true"], "--overfit is for recipes");
    refused(&scene, &["--try", "--", "true"], "--try is for recipes");
    refused(&scene, &["--try", "--overfit", "8", "demo"], "cannot be used with");
    refused(&scene, &["--try", "--resume", "never", "demo"], "--resume never has no effect with --try");
    refused(&scene, &["--try", "--nnodes", "2", "--rdzv-endpoint", "h", "demo"], "--try runs on one node");
    refused(&scene, &["--stdin-rank", "0", "demo"], "--stdin-rank is for programs");
    refused(&scene, &["--no-such-flag", "--", "true"], "--no-such-flag");
    refused(&scene, &["--shutdown-timeout", "soon", "--", "true"], "soon");
}

#[test]
fn invalid_recipes_are_errors() {
    let scene = Scene::new();
    fs::write(scene.path(".bad.toml"), "task = \"classify\"\n[train]\nefective_batch = 3\n").unwrap();
    refused(&scene, &["no-such-recipe"], "no-such-recipe");
    refused(&scene, &[".bad.toml"], "efective_batch");
    refused(&scene, &["demo", "--set", "train.epochs=many"], "train.epochs");
    refused(&scene, &["demo", "--set", "nonsense"], "nonsense");
    let done = scene.launch(&["demo", "--set", "nonsense"]);
    assert!(!done.stderr.contains("Start a program with"), "{}", done.stderr);
    refused(&scene, &["cifar100", "--set", "data.root=nowhere"], "nowhere");
    refused(&scene, &["demo", "--resume", "no/such/checkpoint"], "no/such/checkpoint");
}

#[test]
fn more_workers_than_samples_in_a_step() {
    let scene = Scene::new();
    let args = ["--nproc", "3", "demo", "--set", "train.effective_batch=2", "--run-dir", "run"];
    refused(&scene, &args, "an effective batch of 2 cannot be shared by 3 ranks");
}

#[test]
fn a_trainer_that_is_not_there() {
    let scene = Scene::new();
    let mut command = scene.command(&["demo"]);
    command.env("DTRAIN_WORKER", "/no/such/worker");
    scene
        .start(command)
        .wait()
        .expect_code(2)
        .expect_stderr("DTRAIN_WORKER is set wrongly")
        .expect_stderr("does not exist");
    let copy = scene.path(".bin/dtrain");
    fs::create_dir(scene.path(".bin")).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_dtrain"), &copy)
        .or_else(|_| fs::copy(env!("CARGO_BIN_EXE_dtrain"), &copy).map(drop))
        .unwrap();
    let mut command = scene.adapt(Command::new(&copy), &["launch", "demo"]).into_command::<&str>(&[]);
    command.env_remove("DTRAIN_WORKER").env("PATH", "/usr/bin:/bin");
    scene.start(command).wait().expect_code(2).expect_stderr("cargo build --release -p dtrain-worker");
    scene.expect_nothing_written();
}

/// The program beside dtrain's own trainer has answered about the recipe before.
#[test]
fn a_trainer_without_its_libraries() {
    let scene = Scene::new();
    fs::create_dir(scene.path(".bin")).unwrap();
    let mut program = fs::read(programs::resolver()).unwrap();
    fs::write(scene.path(".bin/dtrain-recipes"), &program).unwrap();
    let (library, missing) = (b"libgcc_s.so.1\0", b"libgcc_x.so.1\0");
    let found: Vec<usize> =
        (0..program.len() - library.len()).filter(|start| program[*start..].starts_with(library)).collect();
    assert!(!found.is_empty());
    found.iter().for_each(|start| program[*start..][..missing.len()].copy_from_slice(missing));
    fs::write(scene.path(".bin/dtrain-worker"), &program).unwrap();
    for name in ["dtrain-recipes", "dtrain-worker"] {
        fs::set_permissions(scene.path(".bin").join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let with = |args: &[&str]| {
        let mut command = scene.command(args);
        command.env("DTRAIN_WORKER", scene.path(".bin/dtrain-worker"));
        scene.start(command).wait()
    };
    with(&["demo", "--set", "data.classes=x"]).expect_code(2).expect_stderr("data.classes");
    with(&["demo"])
        .expect_code(2)
        .expect_stderr("dtrain-worker does not find libgcc_x.so.1; `dtrain doctor` says");
    scene.expect_nothing_written();
}

#[test]
fn a_run_directory_that_is_taken() {
    let scene = Scene::new();
    fs::create_dir(scene.path(".taken")).unwrap();
    fs::write(scene.path(".taken/thesis.tex"), "years of work").unwrap();
    refused(&scene, &["--run-dir", ".taken", "--", "true"], ".taken is not empty");
    refused(&scene, &["--run-dir", ".taken", "demo"], ".taken is not empty");
    refused(&scene, &["--run-dir", ".taken/thesis.tex", "--", "true"], "is not a folder");
    assert_eq!(fs::read_dir(scene.path(".taken")).unwrap().count(), 1);
}

#[test]
fn a_deleted_current_folder_is_named_by_the_commands_that_need_it() {
    let scene = Scene::new();
    let run = |words: &[&str]| {
        let script = r#"mkdir gone; cd gone; rmdir ../gone; exec "$0" "$@""#;
        let line = [&["-c", script, env!("CARGO_BIN_EXE_dtrain")], words].concat();
        scene.start(scene.adapt(Command::new("sh"), &line).into_command::<&str>(&[])).wait()
    };
    for words in [
        &["launch", "--", "true"][..],
        &["launch", "demo"],
        &["plan", "demo"],
        &["runs"],
        &["runs", "watch"],
        &["ckpt", "ls", "run"],
        &["ckpt", "export", "/no/such", "out"],
        &["batch", "slurm", "demo"],
        &["doctor"],
        &["eval", "demo", "--checkpoint", "/no/such"],
    ] {
        let done = run(words);
        done.expect_code(2)
            .expect_stderr("dtrain: error: the current folder ")
            .expect_stderr("/gone was deleted; `cd` to");
        assert_eq!(done.stderr.lines().count(), 1, "{words:?}: {}", done.stderr);
    }
    run(&["launch", "--help"]).expect_code(0);
    run(&["launch", "--", "/bin/true"]).expect_code(0);
    run(&["ckpt", "ls", "/no/such"]).expect_code(2).expect_stderr("/no/such");
}

#[test]
fn help_and_version_need_no_manual() {
    let scene = Scene::new();
    let done = scene.launch(&["--help"]);
    done.expect_code(0);
    let help = done.stdout();
    for word in
        ["--nproc", "--nproc-per-node", "--run-dir", "--resume", "--set", "--shutdown-timeout", "RECIPE"]
    {
        assert!(help.contains(word), "{word} is missing in:\n{help}");
    }
    for part in
        ["dtrain launch demo", "dtrain launch --nproc 4 train.py", "Exit codes:", "75     stopped on request"]
    {
        assert!(help.contains(part), "{part} is missing in:\n{help}");
    }
    let version =
        scene.adapt(Command::new(env!("CARGO_BIN_EXE_dtrain")), &["--version"]).into_command::<&str>(&[]);
    let done = scene.start(version).wait();
    let shown = done.expect_code(0).stdout();
    assert!(shown.starts_with(&format!("dtrain {} (commit ", env!("CARGO_PKG_VERSION"))), "{shown}");
    // The trainer of these tests is a script that says nothing of itself.
    assert!(shown.trim().ends_with("dtrain-worker does not start; `dtrain doctor` says why"), "{shown}");
}

/// The whole help in a terminal of 100 columns. To update the file, and review the difference: `COLUMNS=100
/// cargo run -p dtrain -- launch --help > launcher/tests/launch/help.txt`.
#[test]
fn the_command_line_is_what_its_file_says() {
    let scene = Scene::new();
    let mut command = scene.command(&["--help"]);
    command.env("COLUMNS", "100");
    let help = scene.start(command).wait().expect_code(0).stdout();
    let lines = |text: &str| -> Vec<String> { text.lines().map(|line| line.trim_end().to_owned()).collect() };
    assert_eq!(
        lines(&help),
        lines(include_str!("help.txt")),
        "the help has changed; if that is meant, renew tests/launch/help.txt as the comment of this test says"
    );
}
