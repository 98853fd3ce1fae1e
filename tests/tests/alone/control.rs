//! The control sockets of a training: found and answered during the run, gone after it.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use dtrain_common::control::workers;
use dtrain_tests::process::{finish, output_text};
use dtrain_tests::programs::{dtrain, without_outer_run};
use dtrain_tests::runs::{Sandbox, TINY};

const LONG: Duration = Duration::from_secs(120);

/// Runs `dtrain gpu clear` with this runtime folder.
fn clear(runtime: &Path) -> Output {
    let mut command = Command::new(dtrain());
    without_outer_run(&mut command);
    command.args(["gpu", "clear"]).env("XDG_RUNTIME_DIR", runtime);
    finish(&mut command, LONG)
}

#[test]
fn a_running_training_answers_requests_and_continues() {
    let _alone = crate::alone();
    let sandbox = Sandbox::new(TINY);
    let runtime = sandbox.path("runtime");
    std::fs::create_dir(&runtime).unwrap();
    let sockets = [runtime.join("dtrain")];
    let mut launch = sandbox.command(2, "run", &["train.epochs=12"], &[]);
    let run =
        launch.env("XDG_RUNTIME_DIR", &runtime).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();

    let begun = Instant::now();
    let metrics = sandbox.run("run").0.metrics();
    // Waits until both listen and steps have been taken.
    while workers(&sockets).len() < 2 || !metrics.metadata().is_ok_and(|meta| meta.len() > 0) {
        assert!(begun.elapsed() < LONG, "no two workers: {:?}", workers(&sockets));
        std::thread::sleep(Duration::from_millis(20));
    }
    let pids: Vec<u32> = workers(&sockets).into_iter().map(|(pid, _)| pid).collect();
    let output = clear(&runtime);
    assert!(output.status.success(), "{}", output_text(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for pid in pids {
        let line = text.lines().find(|line| line.starts_with(&format!("pid {pid} (rank ")));
        let line = line.unwrap_or_else(|| panic!("pid {pid} in {text}"));
        assert!(line.contains(", CPU): freed ") && line.contains(" reserved"), "{line}");
    }
    assert!(text.contains("rank 0") && text.contains("rank 1"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("2 workers freed "), "{text}");

    // The run is not disturbed.
    let ended = run.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(sandbox.run("run").per_step("loss").len(), 12 * 6);
    assert_eq!(workers(&sockets), [], "sockets are left");
}
