//! Recipe runs, with a script as the trainer.

use crate::ckpt::checkpoint;
use crate::harness::{Finished, Launch, Scene, executable, result, words};
use dtrain_test_kit::programs::RESOLVE;
use rustix::process::Signal;
use serde_json::Value;
use std::fs;

fn start<'a>(scene: &'a Scene, args: &[&str], worker: &str) -> Launch<'a> {
    let mut command = scene.command(args);
    command.env("FAKE_WORKER", worker);
    scene.start(command)
}

#[track_caller]
fn run(scene: &Scene, args: &[&str], worker: &str) -> Finished {
    start(scene, args, worker).wait()
}

const TWO: [&str; 5] = ["--nproc", "2", "demo", "--run-dir", "run"];

#[test]
fn the_trainer_gets_the_prepared_run_directory_and_the_contract() {
    let scene = Scene::new();
    let worker = r#"printf '%s\n' "$@" > "$TEST_DIR/args.$RANK"; env > "$TEST_DIR/env.$RANK"; echo trained"#;
    let args = words("--nproc 2 demo --set train.effective_batch=10 --set train.seed=7 --run-dir run");
    let done = run(&scene, &args, worker);
    done.expect_code(0);
    for rank in 0..2 {
        let words = "run/recipe.toml\n--run-dir\nrun\n--prepared\n--resume\nnever\n";
        assert_eq!(scene.read(&format!("args.{rank}")), words);
        let error_file = scene.path(&format!("run/logs/attempt_0/rank_{rank}/error.json"));
        let expected = format!("TORCHELASTIC_ERROR_FILE={}\n", error_file.display());
        assert!(scene.read(&format!("env.{rank}")).contains(&expected));
        assert_eq!(scene.read(&format!("run/logs/attempt_0/rank_{rank}/stdout.log")), "trained\n");
    }
    assert!(scene.read("run/recipe.toml").contains("effective_batch = 10"));
    done.expect_stderr("effective batch 10 = 2 ranks x 5 x 1 accumulation; run directory run\n");
    done.expect_stderr("dtrain: 2 workers on the CPU; ");
    done.expect_stderr("dtrain: done: trained\n").expect_stderr("  files: run\n");
}

#[test]
fn a_run_without_a_name_gets_a_folder_of_its_own() {
    let scene = Scene::new();
    for _ in 0..2 {
        run(&scene, &["demo"], "exit 0").expect_code(0).expect_stderr("1 worker on the CPU; effective batch");
    }
    let folders: Vec<_> =
        fs::read_dir(scene.path("runs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(folders.len(), 2);
    assert!(
        folders
            .iter()
            .all(|folder| folder.join("recipe.toml").exists() && folder.join("result.json").exists())
    );
}

/// Rank 0 may succeed while another rank fails.
#[test]
fn a_run_that_went_back_has_ended_when_every_worker_has() {
    let scene = Scene::new();
    checkpoint(&scene.path("run"), 10, |_, _| ());
    let args = [&TWO[..], &["--resume", "run/checkpoints/step-00000010"]].concat();
    let state = || {
        let named: Value = serde_json::from_str(&scene.read("run/resume.json")).unwrap();
        assert_eq!(named["checkpoint"], "step-00000010");
        named["state"].clone()
    };
    let begins = r#"cd "$TEST_DIR/run"; [ $RANK = 0 ] && exec sed -i s/named/begun/ resume.json
        until grep -q begun resume.json; do sleep 0.01; done; exit 1"#;
    run(&scene, &args, begins).expect_code(4);
    assert_eq!(state(), "begun");
    run(&scene, &args, "exit 0").expect_code(0);
    assert_eq!(state(), "ended");
}

#[test]
fn the_trainers_codes_keep_their_meaning() {
    for (code, expected, meaning) in [
        (2, 2, "the data are wrong"),
        (3, 3, "out of memory"),
        (5, 5, "could not connect"),
        (1, 4, "a worker failed"),
        (42, 4, "a worker failed"),
    ] {
        let scene = Scene::new();
        let worker = format!(r#"[ $RANK = 1 ] && exit {code}; exec sleep 600"#);
        let done = run(&scene, &TWO, &worker);
        done.expect_code(expected)
            .expect_stderr("dtrain: rank 1 (pid ")
            .expect_stderr(&format!("exit code {expected}: "));
        if code != 2 {
            done.expect_stderr(meaning);
        }
        let result = result(&scene);
        assert_eq!(result["exit_code"], expected);
        assert_eq!((&result["failure"]["rank"], &result["failure"]["exit_code"]), (&1.into(), &code.into()));
        assert!(
            result["reason"].as_str().unwrap().starts_with(&format!("rank 1 failed: exit code {code}; "))
        );
    }
}

#[test]
fn a_trainer_killed_by_a_signal_is_a_failed_worker() {
    let scene = Scene::new();
    run(&scene, &TWO, "[ $RANK = 0 ] && exec sleep 600; kill -KILL $$")
        .expect_code(4)
        .expect_stderr("killed by SIGKILL");
    assert_eq!(result(&scene)["failure"]["signal"], "SIGKILL");
}

#[test]
fn the_outcome_completes_the_figures_of_the_trainer() {
    let scene = Scene::new();
    let worker = r#"[ $RANK = 0 ] && echo '{"steps": 12, "final_metrics": {"accuracy": 0.5}, "startup_ms": 3.5}' > "$3/result.json"; exit 0"#;
    run(&scene, &TWO, worker).expect_code(0);
    let result = result(&scene);
    assert_eq!((&result["steps"], &result["final_metrics"]["accuracy"]), (&12.into(), &0.5.into()));
    assert_eq!(
        (&result["exit_code"], &result["nproc"], &result["restarts"]),
        (&0.into(), &2.into(), &0.into())
    );
    assert_eq!(result["reason"], "success");
    assert!(result.get("failure").is_none());
}

#[test]
fn the_trainers_own_message_is_the_banner_and_in_the_result() {
    let scene = Scene::new();
    let worker = r#"
        echo noise >&2
        echo '{"message":{"message":"the disk is full","extraInfo":{"py_callstack":"","timestamp":"1"}}}' > "$TORCHELASTIC_ERROR_FILE"
        exit 1"#;
    let done = run(&scene, &["--nproc", "1", "demo", "--run-dir", "run"], worker);
    done.expect_code(4)
        .expect_stderr("    the disk is full\n")
        .expect_stderr("log: run/logs/attempt_0/rank_0/stderr.log");
    assert_eq!(result(&scene)["failure"]["message"], "the disk is full");
}

#[test]
fn errors_of_the_trainer_are_one_sentence() {
    let scene = Scene::new();
    let worker = r#"
        [ $RANK = 1 ] && exec sleep 600
        echo '{"message":{"message":"the data folder is empty","extraInfo":{"py_callstack":"","timestamp":"1"}}}' > "$TORCHELASTIC_ERROR_FILE"
        exit 2"#;
    let done = run(&scene, &[&TWO[..], &["--max-restarts", "3"]].concat(), worker);
    done.expect_code(2);
    let said: Vec<_> = done.stderr.lines().skip_while(|line| line.contains("run directory")).collect();
    assert_eq!(said, ["dtrain: error: the data folder is empty"], "{}", done.stderr);
    assert_eq!(result(&scene)["failure"]["message"], "the data folder is empty");
}

#[test]
fn a_result_that_cannot_be_read_is_told_and_changes_no_code() {
    let scene = Scene::new();
    run(&scene, &TWO, r#"echo nonsense > "$3/result.json""#)
        .expect_code(0)
        .expect_stderr("cannot write run/result.json");
}

#[test]
fn an_earlier_result_and_earlier_errors_are_not_taken_for_this_runs() {
    let scene = Scene::new();
    let first = r#"
        echo '{"steps": 12}' > "$3/result.$RANK"; mv "$3/result.$RANK" "$3/result.json"
        echo '{"message":"old trouble"}' > "$TORCHELASTIC_ERROR_FILE"; exit 1"#;
    run(&scene, &TWO, first).expect_code(4).expect_stderr("old trouble");
    let done = run(&scene, &TWO, "exit 1");
    done.expect_code(4);
    assert!(!done.stderr.contains("old trouble"), "{}", done.stderr);
    assert_eq!(result(&scene).get("steps"), None);
    assert!(scene.path("run/logs/attempt_0/rank_0/stderr.log").exists());
    assert!(scene.path("run/logs/attempt_1/rank_0/stderr.log").exists());
}

#[test]
fn another_experiment_does_not_get_the_same_run_directory() {
    let scene = Scene::new();
    run(&scene, &TWO, "exit 0").expect_code(0);
    let before = (scene.read("run/recipe.toml"), scene.read("run/result.json"));
    let args = ["--nproc", "2", "demo", "--run-dir", "run", "--set", "optim.lr=0.5"];
    run(&scene, &args, ": > $TEST_DIR/ran").expect_code(2).expect_stderr("optim.lr");
    run(&scene, &[&TWO[..], &["--resume", "never"]].concat(), ": > $TEST_DIR/ran")
        .expect_code(2)
        .expect_stderr("--run-dir");
    assert!(!scene.path("ran").exists());
    assert_eq!(before, (scene.read("run/recipe.toml"), scene.read("run/result.json")));
}

#[test]
fn a_stop_on_request_with_a_checkpoint_gives_75() {
    let scene = Scene::new();
    let worker = r#"trap 'exit 75' TERM; : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.05; done"#;
    let launch = start(&scene, &TWO, worker);
    scene.wait_for_ready(2);
    launch.signal(Signal::TERM);
    let done = launch.wait();
    done.expect_code(75)
        .expect_stderr("stopped on request with a checkpoint written")
        .expect_stderr("--run-dir run");
    let result = result(&scene);
    assert_eq!(result["exit_code"], 75);
    assert!(result.get("failure").is_none());
}

#[test]
fn trainers_that_are_stopped_before_they_can_write_a_checkpoint_give_128_plus_n() {
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let scene = Scene::new();
        let launch = start(&scene, &TWO, r#": > "$TEST_DIR/ready.$RANK"; exec sleep 600"#);
        scene.wait_for_ready(2);
        launch.signal(signal);
        launch.wait().expect_code(code);
        assert_eq!(result(&scene)["exit_code"], code);
    }
}

#[test]
fn a_trainer_that_breaks_while_stopping_is_not_a_requeue() {
    let scene = Scene::new();
    let worker = r#"
        if [ $RANK = 0 ]; then code=75; else code=1; fi
        trap 'exit $code' TERM; : > "$TEST_DIR/ready.$RANK"; while :; do sleep 0.05; done"#;
    let launch = start(&scene, &TWO, worker);
    scene.wait_for_ready(2);
    launch.signal(Signal::TERM);
    launch.wait().expect_code(4).expect_stderr("dtrain: rank 1 (pid ");
}

#[test]
fn a_trainer_that_leaves_with_75_lets_the_others_finish() {
    let scene = Scene::new();
    let worker = r#"
        if [ $RANK = 1 ]; then exit 75; fi
        sleep 1; : > "$TEST_DIR/finished"; exit 75"#;
    run(&scene, &TWO, worker).expect_code(75);
    assert!(scene.path("finished").exists());
}

#[test]
fn a_trainer_that_cannot_be_executed_leaves_the_earlier_run_as_it_was() {
    let scene = Scene::new();
    run(&scene, &TWO, "exit 0").expect_code(0);
    let before = scene.read("run/result.json");
    let mut command = scene.command(&TWO);
    command.env("DTRAIN_WORKER", executable(&scene, "broken", "#!/no/such/interpreter\n"));
    scene
        .start(command)
        .wait()
        .expect_code(2)
        .expect_stderr("the interpreter named in its first line does not exist");
    assert_eq!(scene.read("run/result.json"), before);
    assert!(!scene.path("run/logs/attempt_1").exists());
}

#[test]
fn a_restart_that_cannot_start_keeps_the_figures_of_the_attempt_before() {
    let scene = Scene::new();
    let worker =
        format!("#!/bin/sh\n{RESOLVE}\necho '{{\"steps\": 12}}' > \"$3/result.json\"\nrm \"$0\"\nexit 4\n");
    let one = ["--nproc", "1", "--max-restarts", "1", "demo", "--run-dir", "run"];
    let mut command = scene.command(&one);
    command.env("DTRAIN_WORKER", executable(&scene, "once", &worker));
    scene.start(command).wait().expect_code(4).expect_stderr("dtrain: cannot restart: cannot start `");
    assert_eq!(result(&scene)["steps"], 12);
}
