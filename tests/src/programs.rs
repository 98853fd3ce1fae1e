//! The programs under test, as cargo built them beside this test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use dtrain_test_kit::need::{self, Need};

/// `target/<profile>` of the running test.
///
/// # Panics
/// Where the running test does not lie in a cargo target folder.
pub fn build_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("the running test has a path");
    let deps = exe.parent().expect("a file has a folder");
    let folder = if deps.ends_with("deps") {
        deps.parent().unwrap_or(deps)
    } else {
        deps
    };
    folder.to_owned()
}

fn program(name: &str) -> PathBuf {
    let path = build_folder().join(name);
    assert!(
        path.is_file(),
        "{} is not built; run `cargo test --workspace`, or `cargo build` before it",
        path.display()
    );
    path
}

/// The launcher.
pub fn dtrain() -> PathBuf {
    program("dtrain")
}

/// The trainer.
pub fn worker() -> PathBuf {
    program("dtrain-worker")
}

/// The example of docs/own-trainer.md.
pub fn own_trainer() -> PathBuf {
    program("own-trainer")
}

/// A launcher command whose environment holds nothing of an outer run, and one thread per rank.
pub fn launch() -> Command {
    let mut command = Command::new(dtrain());
    command
        .arg("launch")
        .env("DTRAIN_WORKER", worker())
        .env("OMP_NUM_THREADS", "1");
    without_outer_run(&mut command);
    command
}

/// Runs a command to its end and collects what it prints.
///
/// # Panics
/// Where it does not start, or has not ended within `limit` (it is asked to end then, and killed).
pub fn finish(command: &mut Command, limit: Duration) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let pid = child.id().to_string();
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(limit) {
        Ok(output) => output.expect("the output can be read"),
        Err(_) => {
            // A launcher that is asked to end takes its workers with it.
            for (signal, patience) in [("-TERM", 10), ("-KILL", 1)] {
                let _ = Command::new("kill").args([signal, &pid]).status();
                if receiver.recv_timeout(Duration::from_secs(patience)).is_ok() {
                    break;
                }
            }
            panic!("{command:?} has not ended within {limit:?}")
        }
    }
}

/// Removes the variables by which an outer launcher would speak to the program.
pub fn without_outer_run(command: &mut Command) {
    for (name, _) in dtrain_common::env::WorkerEnv::single().vars() {
        command.env_remove(name);
    }
    command
        .env_remove("DTRAIN_PROGRESS")
        .env_remove("DTRAIN_START_UNIX_NS")
        .env_remove("RUST_LOG");
}

/// Real data for tests, where there is some: the folder named by DTRAIN_TEST_DATA, else `../shared/data` beside the
/// workspace. The test is skipped where there is none.
pub fn test_data(name: &str) -> Option<PathBuf> {
    let root = match std::env::var_os("DTRAIN_TEST_DATA") {
        Some(root) => PathBuf::from(root),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
    };
    let folder = root.join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    need::skip(
        Need::Data,
        format!("there is no {} (set DTRAIN_TEST_DATA)", folder.display()),
    );
    None
}
