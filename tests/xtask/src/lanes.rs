//! The tests of a check, in two lanes: the end-to-end tests are one binary that takes as long as all others. While one
//! lane waits, for a time-out or its last test, the other uses the cores.

use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::process::Signals;
use crate::setup::Ready;
use crate::workspace::Workspace;

/// The binary that runs alone in its lane.
const LONGEST: &str = "e2e";

/// Binaries that nothing may run beside: last.
const ALONE: &str = "alone";

/// Builds and runs all tests, and returns the exit code of the first cargo that failed. `cargo` has the environment
/// of the tests. `prepare` makes what the tests need, beside the build.
pub(crate) fn run(
    workspace: &Workspace,
    signals: &Signals,
    ready: &Ready,
    cargo: impl Fn() -> Command + Sync,
    prepare: impl FnOnce() -> Result<()> + Send,
) -> Result<u8> {
    let others = targets(workspace, ready)?;
    let test = |args: &[&str]| {
        let mut cargo = cargo();
        cargo.args(["test", "--workspace", "--no-fail-fast"]).args(args);
        cargo
    };
    // Two cargos that build would wait for each other.
    let built = thread::scope(|scope| {
        let prepared = scope.spawn(prepare);
        let built = signals.run(cargo().args(["test", "--workspace", "--no-run"]))?.code;
        prepared.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        anyhow::Ok(built)
    })?;
    if built != 0 {
        return Ok(built);
    }
    let mut rest = vec!["--lib"];
    rest.extend(others.iter().flat_map(|(kind, name)| [*kind, name]));
    // Lines have no name of their lane: people and programs look for `test result` at the start of a line.
    let ended: Vec<Result<u8>> = thread::scope(|scope| {
        let lanes = [test(&["--test", LONGEST]), test(&rest)]
            .map(|mut lane| scope.spawn(move || Ok(signals.run(&mut lane)?.code)));
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
