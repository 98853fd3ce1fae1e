//! The tests of a check, in two lanes: the end-to-end tests are one binary that takes as long as all others. While one
//! lane waits, for a time-out or its last test, the other uses the cores.

use std::env;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::process::Signals;
use crate::setup::Ready;
use crate::workspace::Workspace;

/// The binary that has a lane of its own.
const LONGEST: &str = "e2e";

/// Binaries that nothing may run beside: last.
const ALONE: &str = "alone";

/// The number of tests of a binary that run at once.
pub(crate) const THREADS: &str = "RUST_TEST_THREADS";

/// How long a lane waits for its last lines: a process that a test left may hold the pipe.
const LAST_LINES: Duration = Duration::from_secs(10);

/// Builds and runs all tests, and returns the exit code of the first cargo that failed. `cargo` has the environment
/// of the tests.
pub(crate) fn run(
    workspace: &Workspace,
    signals: &Signals,
    ready: &Ready,
    cargo: impl Fn() -> Command + Sync,
) -> Result<u8> {
    let others = targets(workspace, ready)?;
    let test = |args: &[&str]| {
        let mut cargo = cargo();
        cargo.args(["test", "--workspace", "--no-fail-fast"]).args(args);
        cargo
    };
    // Two cargos that build would wait for each other.
    let built = signals.run(cargo().args(["test", "--workspace", "--no-run"]))?.code;
    if built != 0 {
        return Ok(built);
    }
    let mut rest = vec!["--lib"];
    rest.extend(others.iter().flat_map(|(kind, name)| [*kind, name]));
    let mut others = test(&rest);
    if env::var_os(THREADS).is_none() {
        // With one thread, libtest does not give threads the names of tests.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        others.env(THREADS, cores.max(2).to_string());
    }
    let lanes = [(LONGEST, test(&["--test", LONGEST])), ("others", others)];
    let ended: Vec<Result<u8>> = thread::scope(|scope| {
        let lane = |(name, command)| scope.spawn(move || run_lane(signals, name, command));
        let lanes = lanes.map(lane);
        lanes.map(|lane| lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).into()
    });
    let mut codes = ended.into_iter().collect::<Result<Vec<u8>>>()?;
    codes.push(signals.run(&mut test(&["--test", ALONE]))?.code);
    Ok(codes.into_iter().find(|code| *code != 0).unwrap_or(0))
}

/// Returns all test binaries but [`LONGEST`] and [`ALONE`], as flags of cargo with names. `--bins` would also build those
/// that have no tests.
fn targets(workspace: &Workspace, ready: &Ready) -> Result<Vec<(&'static str, String)>> {
    let mut names = Vec::new();
    for package in
        ready.metadata(workspace)?["packages"].as_array().context("cargo metadata has no packages")?
    {
        for target in package["targets"].as_array().into_iter().flatten() {
            let is_tested = target["test"] == true && target["required-features"].is_null();
            let kind = match target["kind"][0].as_str() {
                Some("test") if is_tested => "--test",
                Some("bin") if is_tested => "--bin",
                _ => continue,
            };
            let named = (kind, target["name"].as_str().unwrap_or_default().to_owned());
            if !names.contains(&named) {
                names.push(named);
            }
        }
    }
    let all = names.len();
    names.retain(|(_, name)| name != LONGEST && name != ALONE);
    ensure!(names.len() + 2 == all, "{LONGEST} and {ALONE} are not among the tests of cargo metadata");
    Ok(names)
}

/// Runs a lane to its end and shows its output, each line with the lane's name.
fn run_lane(signals: &Signals, name: &'static str, mut command: Command) -> Result<u8> {
    let (reader, writer) = io::pipe().context("cannot make a pipe")?;
    command.stdout(writer.try_clone().context("cannot make a pipe")?).stderr(writer);
    let ended = show(name, reader);
    let code = signals.run(&mut command)?.code;
    // The command holds ends of the pipe.
    drop(command);
    let _ = ended.recv_timeout(LAST_LINES);
    Ok(code)
}

/// Shows the lines of a pipe. The receiver hears when the pipe has ended.
fn show(name: &'static str, pipe: PipeReader) -> Receiver<()> {
    let (sender, ended) = channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        while let Ok(1..) = lines.read_until(b'\n', &mut line) {
            // If standard error is closed, the exit code still tells.
            let _ = io::stderr().write_all(&[format!("{name}: ").as_bytes(), &line].concat());
            line.clear();
        }
        let _ = sender.send(());
    });
    ended
}
