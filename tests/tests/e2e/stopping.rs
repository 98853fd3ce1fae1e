//! Stop requests, time limits, and the resume after them.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use dtrain_common::manifest::Manifest;
use dtrain_test_kit::thorough;
use dtrain_tests::process::{Signal, expect_exit_code, rank_pid, signal};
use dtrain_tests::runs::{Run, Sandbox, TINY, resnet18};

/// Far more steps than a test waits for, and no regular checkpoints.
const LONG: [&str; 2] = ["train.epochs=2000", "checkpoint.every=1000 epochs"];

fn begin(sandbox: &Sandbox, ranks: usize, sets: &[&str], more: &[&str]) -> Child {
    let mut command = sandbox.command(ranks, "run", sets, more);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    sandbox.run("run").wait_for_lines(2);
    child
}

/// Checks that the run has ended with a checkpoint of its last step; returns that step.
fn stopped_well(run: &Run) -> u64 {
    let result = run.result();
    assert_eq!(result.exit_code, Some(75), "{:?}", result.reason);
    let steps = result.steps.unwrap();
    let folder = run.0.checkpoint(steps);
    let manifest = Manifest::read(&folder).unwrap();
    manifest.verify(&folder).unwrap();
    assert_eq!(manifest.step, steps);
    assert_eq!(run.per_step("loss").len() as u64, steps);
    steps
}

#[test]
fn usr1_to_the_launcher_or_to_one_rank_stops_all_with_a_checkpoint() {
    // A signal to the launcher: `launch::signals`.
    for &(ranks, whom) in thorough::cases(&[(2, Some(1)), (1, None)], 1) {
        let sandbox = Sandbox::new(TINY);
        let mut launcher = begin(&sandbox, ranks, &LONG, &[]);
        match whom {
            // The guardian forwards it.
            None => signal(launcher.id(), Signal::USR1),
            Some(rank) => signal(rank_pid(launcher.id(), rank), Signal::USR1),
        }
        assert_eq!(launcher.wait().unwrap().code(), Some(75));
        stopped_well(&sandbox.run("run"));
    }
}

/// A batch system signals every process of a job, and the launcher forwards its signal too.
#[test]
fn two_simultaneous_signals_are_one_request() {
    let sandbox = Sandbox::new(TINY);
    let mut launcher = begin(&sandbox, 2, &LONG, &[]);
    signal(rank_pid(launcher.id(), 0), Signal::TERM);
    signal(rank_pid(launcher.id(), 1), Signal::TERM);
    signal(launcher.id(), Signal::TERM);
    assert_eq!(launcher.wait().unwrap().code(), Some(75));
    stopped_well(&sandbox.run("run"));
}

#[test]
fn a_run_stops_before_its_time_limit_and_is_not_restarted() {
    let sandbox = Sandbox::new(TINY);
    let begun = Instant::now();
    // Asked after 5 s. On a busy machine a checkpoint may take longer than these.
    let limit = ["--time-limit", "50", "--time-margin", "45s", "--max-restarts", "3"];
    let text = expect_exit_code(&sandbox.launch_with(2, "run", &LONG, &limit), 75);
    assert!(begun.elapsed() < Duration::from_secs(50), "{text}");
    assert!(text.contains("the time limit is near"), "{text}");
    let steps = stopped_well(&sandbox.run("run"));
    assert_eq!(sandbox.run("run").result().restarts, 0);

    // The same command resumes.
    let total = format!("train.steps={}", steps + 1);
    let resumed = sandbox.train(1, "run", &[LONG[0], LONG[1], &total]);
    assert_eq!(resumed.per_step("loss").len() as u64, steps + 1);
}

/// If a stop request interrupts an evaluation, the resume runs it, and the runs do not differ.
#[test]
fn an_interrupted_evaluation_is_made_up() {
    let sandbox = Sandbox::new(&resnet18());
    let sets =
        ["train.steps=4", "checkpoint.every=2 steps", "checkpoint.best=min loss", "data.test_samples=300"];
    let mut launcher = begin(&sandbox, 2, &sets, &[]);
    // Both steps are taken; the evaluation takes far longer.
    signal(rank_pid(launcher.id(), 1), Signal::USR1);
    assert_eq!(launcher.wait().unwrap().code(), Some(75));
    let run = sandbox.run("run");
    assert_eq!(stopped_well(&run), 2);
    assert_eq!(run.evaluations().len(), 0);
    let manifest = Manifest::read(&run.0.checkpoint(2)).unwrap();
    assert!(manifest.evaluation_missing && manifest.metrics.is_empty());
    assert!(!run.0.best().exists());

    let resumed = sandbox.train(2, "run", &sets);
    let whole = sandbox.train(2, "whole", &sets);
    let figures = |run: &Run| -> Vec<(u64, f64)> {
        let evaluations = run.evaluations().into_iter();
        evaluations.map(|line| (line["step"].as_u64().unwrap(), line["loss"].as_f64().unwrap())).collect()
    };
    assert_eq!(figures(&resumed), figures(&whole));
    assert_eq!(resumed.weights(), whole.weights());
    let manifest = Manifest::read(&resumed.0.checkpoint(2)).unwrap();
    assert!(!manifest.evaluation_missing && manifest.metrics.contains_key("loss"));
    assert_eq!(manifest.best, Manifest::read(&whole.0.checkpoint(2)).unwrap().best);
    assert_eq!(resumed.result().best, whole.result().best);
}

#[test]
fn a_missing_rank_is_waited_for_until_the_timeout() {
    // `conformance` has the time-out of Gloo.
    for &transport in thorough::cases(&["shared", "gloo"], 1) {
        let sandbox = Sandbox::new(TINY);
        let more = ["--collective-timeout", "3", "--shutdown-timeout", "1"];
        let mut command = sandbox.command(3, "run", &LONG, &more);
        command.env("DTRAIN_TRANSPORT", transport);
        let launcher = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        sandbox.run("run").wait_for_lines(1);
        signal(rank_pid(launcher.id(), 1), Signal::STOP);
        expect_exit_code(&launcher.wait_with_output().unwrap(), 4);
        let failure = sandbox.run("run").result().failure.expect("a failure");
        assert_ne!(failure.rank, 1, "the one that waits knows");
        let message = failure.message.unwrap();
        let cause = failure.cause.map(|cause| cause.kind);
        // After the first rank, others may have failed because it ended.
        let of_time = cause.as_deref() == Some("collective-timeout");
        assert!(of_time || cause.as_deref() == Some("gloo"), "{transport}: {cause:?} {message}");
        for part in [" number ", " on rank ", "time-out after 3s"] {
            assert!(message.contains(part), "{transport}: {part} in {message}");
        }
        assert!(!of_time || message.contains(" bytes)"), "{transport}: {message}");
    }
}

/// Two launches never write into one folder.
#[test]
fn a_run_directory_has_one_run_at_a_time() {
    let sandbox = Sandbox::new(TINY);
    let mut launcher = begin(&sandbox, 1, &LONG, &[]);
    let text = expect_exit_code(&sandbox.launch(1, "run", &LONG), 2);
    assert!(text.contains("in use by another run"), "{text}");
    signal(launcher.id(), Signal::TERM);
    assert_eq!(launcher.wait().unwrap().code(), Some(75));
    stopped_well(&sandbox.run("run"));
}
