//! The last lines of a launch: what matters, each fact once.

use crate::ckpt::checkpoint;
use crate::harness::{Finished, Scene, words};
use rustix::process::Signal;

/// The files that the trainer writes.
const FIGURES: &str = r#"
    if [ $RANK = 0 ]; then
        echo '{"total_steps": 40, "predictions": [{"peak": 3145728}]}' > "$3/plan.json"
        echo '{"steps": 12, "final_metrics": {"accuracy": 0.5, "loss": 1.25}, "samples_per_s": 2345.6, "startup_ms": 812,
            "peak_memory_bytes": [1048576, 2097152]}' > "$3/result.json"
    fi
"#;

/// The checkpoint of another run would not be resumed, so it comes at the last moment.
const SAVE: &str = "[ $RANK = 0 ] && cp -r made/checkpoints run/;";

fn start(scene: &Scene, line: &str, worker: &str) -> Finished {
    let mut command = scene.command(&words(line));
    command.env("FAKE_WORKER", worker);
    scene.start(command).wait()
}

/// Returns the lines from the one that begins like this, with a T for times.
fn end(done: &Finished, begin: &str) -> String {
    let at = done.stderr.find(begin).unwrap_or_else(|| panic!("{begin:?} is missing in:\n{}", done.stderr));
    let word = |word: &str| {
        if word.parse::<f64>().is_ok_and(|_| word.contains('.')) { "T" } else { word }.to_owned()
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ");
    done.stderr[at..].lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_success_ends_with_result_time_memory_files_and_the_next_command() {
    let scene = Scene::new();
    let done = start(&scene, "--nproc 2 demo --run-dir run", FIGURES);
    let expected = "\
dtrain: done: accuracy 50.00%, loss T after step 12
  time: T s, first step after T s; 2346 samples/s
  memory: T MiB measured, T MiB planned (peak of a rank)
  files: run
  next: dtrain report run";
    assert_eq!(end(done.expect_code(0), "dtrain: done"), expected);
}

#[test]
fn a_failure_ends_with_rank_cause_log_and_the_command_that_resumes() {
    let scene = Scene::new();
    checkpoint(&scene.path("made"), 10, |_, _| {});
    let worker = format!(
        r#"{SAVE} [ $RANK = 0 ] && exec sleep 600; sleep 0.3; echo 'a line that the user has seen' >&2; kill -SEGV $$"#
    );
    let done = start(&scene, "--nproc 2 demo --run-dir run --resume never", &worker);
    let host = dtrain_common::host::name();
    let text = end(done.expect_code(4), "dtrain: rank 1 (pid ");
    let (first, rest) = text.split_once('\n').unwrap();
    assert!(first.ends_with(&format!(") failed after T s on {host}: killed by SIGSEGV")), "{text}");
    let (cause, rest) = rest.split_once('\n').unwrap();
    assert!(cause.starts_with("  cause: "), "{text}");
    let expected = "  \
  log: run/logs/attempt_0/rank_1/stderr.log
  stopped as a consequence: rank 0 (killed by SIGTERM)
dtrain: exit code 4: a worker failed
  next: dtrain launch --nproc 2 --run-dir run demo (resumes after step 10)";
    assert_eq!(rest, expected.trim_start_matches("  \n"));
    assert_eq!(done.stderr.matches("a line that the user has seen").count(), 1);
}

#[test]
fn a_stop_ends_with_the_command_that_resumes() {
    let scene = Scene::new();
    checkpoint(&scene.path("made"), 12, |_, _| {});
    let worker =
        format!("trap '{}exit 75' TERM; {FIGURES} {SAVE} echo ready >&2; while :; do sleep 0.05; done", "");
    let mut command = scene.command(&words("--nproc 2 demo --run-dir run"));
    command.env("FAKE_WORKER", worker);
    let launch = scene.start(command);
    launch.wait_for_stderr("[rank 0] ready");
    launch.wait_for_stderr("[rank 1] ready");
    launch.signal(Signal::TERM);
    let done = launch.wait();
    let expected = "\
dtrain: exit code 75: stopped on request with a checkpoint written, after step 12 of 40
  time: T s, first step after T s; 2346 samples/s
  memory: T MiB measured, T MiB planned (peak of a rank)
  files: run (newest checkpoint run/checkpoints/step-00000012)
  next: dtrain launch --nproc 2 --run-dir run demo (resumes after step 12)";
    assert_eq!(end(done.expect_code(75), "dtrain: exit code"), expected);
}

#[test]
fn a_program_has_no_lines_of_a_training() {
    let scene = Scene::new();
    let done = scene.sh(1, &[], "echo 'warning: one' >&2; echo 'warning: one' >&2");
    assert_eq!(
        done.expect_code(0).stderr.lines().skip_while(|line| line.starts_with("dtrain")).collect::<Vec<_>>(),
        ["warning: one"; 2]
    );
}
