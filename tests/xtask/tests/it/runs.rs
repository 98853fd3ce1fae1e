//! `demo`, `test` and `check`, with a cargo and a dtrain that the test provides.

use std::fs;

use crate::machine::{Machine, Outcome};

/// Targets of cargo's metadata: the binaries that have lanes, two others of one name, and no tests of every machine.
const TARGETS: &str = r#"{"kind": ["test"], "name": "e2e", "test": true}, {"kind": ["test"], "name": "alone", "test": true},
 {"kind": ["bin"], "name": "dtrain", "test": true}, {"kind": ["bin"], "name": "rank", "test": false},
 {"kind": ["test"], "name": "it", "test": true}, {"kind": ["test"], "name": "it", "test": true},
 {"kind": ["lib"], "name": "common", "test": true}, {"kind": ["test"], "name": "mpi", "test": true, "required-features": ["mpi"]}"#;

/// Returns a machine whose cargo notes its calls and builds `dtrain`, a script that writes a run directory.
pub(crate) fn machine(dtrain: &str) -> Machine {
    let machine = Machine::new();
    machine.real("date");
    let (release, debug) = (machine.path("built/release"), machine.path("built/debug"));
    let cargo = format!(
        r#"echo "$RUSTDOCFLAGS $*" >> {calls}
case "$1" in
metadata) echo '{{"target_directory": "{built}", "packages": [{{"targets": [{TARGETS}]}}]}}' ;;
build) mkdir -p {release}; cp {dtrain} {release}/dtrain; chmod +x {release}/dtrain ;;
test)
    mkdir -p {debug}; cp {dtrain} {debug}/dtrain; chmod +x {debug}/dtrain
    if [ -n "$DTRAIN_RECORD_NEEDS" ]; then printf 'a: ip iptables\nb: ip\na: ip\n' >> "$DTRAIN_RECORD_NEEDS"; fi ;;
install) mkdir -p {tools}/bin; cp {mdbook} {tools}/bin/mdbook; chmod +x {tools}/bin/mdbook ;;
esac
for last; do :; done
case "$FAIL" in "$1" | "$3" | "$last") test -z "$FAIL" || exit 101 ;; esac"#,
        calls = machine.path("calls").display(),
        built = machine.path("built").display(),
        release = release.display(),
        debug = debug.display(),
        dtrain = machine.path("dtrain").display(),
        tools = machine.root().join("target/tools").display(),
        mdbook = machine.path("mdbook").display(),
    );
    machine.script("cargo", &cargo);
    let mdbook = "#!/bin/sh\nPATH=/usr/bin:/bin\nmkdir -p \"$2/../target/book\"\n\
                  echo \"<a href=\\\"${LINK:-.}\\\">\" > \"$2/../target/book/index.html\"\necho \"$WARNING\" | grep . >&2 || true\n";
    fs::write(machine.path("mdbook"), mdbook).unwrap();
    fs::write(machine.path("dtrain"), format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{dtrain}\n")).unwrap();
    machine
}

/// Returns a script that writes the files of a run with this last loss and accuracy. Its arguments:
/// `launch --nproc N --run-dir DIR demo`, possibly with more.
fn training(last_loss: &str, accuracy: &str) -> String {
    format!(
        r#"test "$1 $2 $3 $4 $6" = "launch --nproc 2 --run-dir demo" || exit 2
test -z "$CUDA_VISIBLE_DEVICES" || exit 2
echo "dtrain $7 $8" >> "$0.calls"
mkdir -p "$5/checkpoints/step-00000002"
ln -s step-00000002 "$5/checkpoints/latest"
echo '{{"classes": 10}}' > "$5/checkpoints/latest/manifest.json"
printf '{{"step":1,"loss":2.302}}\n{{"step":2,"loss":{last_loss}}}\n{{"eval":{{"accuracy":{accuracy}}}}}\n{{"checkpoint":{{"step":2}}}}\n' > "$5/metrics.jsonl"
echo '{{"exit_code": 0, "final_metrics": {{"loss": {last_loss}, "accuracy": {accuracy}}}}}' > "$5/result.json""#
    )
}

fn calls(machine: &Machine) -> Vec<String> {
    let calls = fs::read_to_string(machine.path("calls")).unwrap_or_default();
    let _ = fs::remove_file(machine.path("calls"));
    calls.lines().map(|line| line.trim().to_owned()).collect()
}

fn demo(last_loss: &str, accuracy: &str) -> Outcome {
    machine(&training(last_loss, accuracy)).run(&["demo", "--cpu"], &[])
}

#[test]
fn a_demo_reports_its_results_and_their_folder() {
    let outcome = demo("0.125", "0.925");
    let line = outcome.ok().stderr.lines().last().unwrap();
    for words in [
        "demo passed: loss 2.302 in the first step and 0.125 in the last of 2",
        "test accuracy 92.5% (chance 10.0%)",
        "results: runs/demo-2",
    ] {
        assert!(line.contains(words), "{words:?} is not in: {line}");
    }
}

#[test]
fn a_demo_that_does_not_learn_fails() {
    demo("2.4", "0.925").error(&["error: demo failed: ", "did not fall"]);
    demo("0.1", "0.11").error(&["less than 3 times chance"]);
}

#[test]
fn a_demo_returns_the_exit_code_of_the_failed_step() {
    machine("exit 75").run(&["demo", "--cpu"], &[]).ended(75).says("exit code 75");
    let outcome = machine("exit 0").run(&["demo", "--cpu"], &[("FAIL", "build")]);
    outcome.ended(101).says("demo failed: cannot build dtrain");
    machine("exit 0").run(&["demo", "--cpu"], &[]).error(&["cannot read", "result.json"]);
}

#[test]
fn test_passes_its_arguments_to_cargo() {
    let machine = machine("");
    machine.run(&["test", "--cpu", "--", "batch", "--", "--nocapture"], &[]).ok();
    assert_eq!(calls(&machine), ["test --workspace batch -- --nocapture"]);
    machine.run(&["test", "--cpu"], &[("FAIL", "test")]).ended(101);
}

#[test]
fn check_stops_at_the_first_failed_step() {
    let machine = machine(&training("0.125", "0.925"));
    machine.run(&["setup", "--cpu"], &[]).ok();
    for tool in ["ip", "iptables"] {
        machine.script(tool, "");
    }
    let outcome = machine.run(&["check", "--cpu"], &[]);
    outcome.ok().says("check 4/8: tests: cargo test --workspace --no-fail-fast\n");
    outcome.says("check 6/8: demo: cargo xtask demo --profile dev --epochs 1\n").says("demo passed: ");
    outcome.says("\nwheel skipped: no strip on PATH").says("\nMPI skipped: no mpicc.mpich");
    outcome.says("\n2 tests without ip, iptables\n");
    // The last lines are the steps' durations.
    let last: Vec<&str> = outcome.stderr.lines().rev().take(8).collect();
    assert!(last[7].starts_with("formatting ") && last[0].starts_with("MPI "), "{last:?}");
    assert!(last.iter().all(|line| line.ends_with(" s")), "{last:?}");
    let bin = machine.root().join("target/hidden-tools/bin");
    let mut left: Vec<_> = fs::read_dir(&bin).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["c++", "cargo", "date", "python3"]);
    let all = [
        "fmt --all --check --",
        "clippy --workspace --all-targets -- -D warnings",
        "metadata --no-deps --format-version 1",
        "test --workspace --no-run",
        "test --workspace --no-fail-fast --lib --bin dtrain --test it",
        "test --workspace --no-fail-fast --test e2e",
        "test --workspace --no-fail-fast --test alone",
        "test --workspace --tests --quiet -- --exact a b",
    ];
    let calls = || {
        let mut calls = calls(&machine);
        // The lanes begin at the same time.
        calls.get_mut(4..6).unwrap_or_default().sort();
        calls
    };
    assert_eq!(calls()[..all.len()], all);
    let hidden = format!("PATH={} cargo test --workspace TEST", bin.display());
    let tests = "cargo test --workspace --no-fail-fast";
    for (called, step, command) in [
        (1, "fmt", "cargo fmt --all --check -- $(git ls-files '*.rs')"),
        (2, "clippy", "cargo clippy --workspace --all-targets -- -D warnings"),
        (4, "--no-run", tests),
        // After a failure in a lane, all other tests run.
        (7, "e2e", tests),
        (7, "it", tests),
        (7, "alone", tests),
        (8, "--tests", &hidden),
    ] {
        let outcome = machine.run(&["check", "--cpu"], &[("FAIL", step)]);
        outcome.ended(101);
        assert!(outcome.stderr.ends_with(&format!("to repeat it: {command}\n")), "{}", outcome.stderr);
        assert_eq!(calls(), all[..called]);
    }
    // A thorough check makes pages too.
    let doc = "check 3/10: documentation: RUSTDOCFLAGS=-Dwarnings cargo doc --workspace --no-deps\n";
    machine.run(&["check", "--cpu", "--thorough"], &[("FAIL", "doc")]).ended(101).says(doc);
    // If clippy compiles the tests, it reports the lints there, and no step repeats them.
    let by_clippy = [("RUSTC_WORKSPACE_WRAPPER", "clippy-driver"), ("FAIL", "--no-run")];
    calls();
    machine.run(&["check", "--cpu"], &by_clippy).ended(101).says("check 3/7: tests: ");
    assert_eq!(calls(), [all[0], all[2], all[3]]);
}

#[test]
fn check_fails_if_the_demo_fails() {
    machine(&training("2.4", "0.925")).run(&["check", "--cpu"], &[]).error(&["did not fall"]);
    let outcome = machine("exit 4").run(&["check", "--cpu"], &[]);
    outcome.ended(4);
    let last = "to repeat it: cargo xtask demo --profile dev --epochs 1\n";
    assert!(outcome.stderr.ends_with(last), "{}", outcome.stderr);
}

#[test]
fn a_warning_or_a_dead_link_fails_the_book() {
    let machine = machine("");
    fs::create_dir(machine.root().join("docs")).unwrap();
    machine.run(&["book"], &[]).ok().says("1 links checked, 0 dead\nbook: open target/book/index.html");
    for (variable, value, code, words) in [
        ("WARNING", "an unclosed tag", 1, "mdBook reports errors or warnings"),
        ("LINK", "no.html", 1, "index.html:1: dead link: no.html"),
        ("FAIL", "install", 101, ""),
    ] {
        machine.run(&["book"], &[(variable, value)]).ended(code).says(words);
    }
}

#[test]
fn a_demo_builds_in_the_background_while_libtorch_is_fetched() {
    let machine = machine(&training("0.125", "0.925"));
    machine.run(&["demo", "--cpu"], &[("FAKE_PIP", "slow")]).ok().says("in the background");
    let build = "build --profile release --package dtrain --package dtrain-worker";
    assert_eq!(calls(&machine)[..2], [format!("{build} --keep-going"), build.to_owned()]);
    let outcome = machine.run(&["demo", "--cpu"], &[]);
    assert!(!outcome.ok().stderr.contains("in the background"), "{}", outcome.stderr);
    assert_eq!(calls(&machine)[0], build);
}

#[test]
fn a_demo_builds_in_the_given_profile() {
    let machine = machine(&training("0.125", "0.925"));
    machine.run(&["test", "--cpu"], &[]).ok();
    calls(&machine);
    let command = ["demo", "--cpu", "--profile", "dev", "--epochs", "2"];
    machine.run(&command, &[]).ok();
    assert_eq!(calls(&machine)[0], "build --profile dev --package dtrain --package dtrain-worker");
    let arguments = fs::read_to_string(machine.path("built/debug/dtrain.calls")).unwrap();
    assert_eq!(arguments, "dtrain --set train.epochs=2\n");
}
