//! `dtrain doctor` as a user sees it.

use crate::harness::{Finished, Scene};
use std::process::Command;
use std::time::{Duration, Instant};

/// A trainer with this libtorch.
pub(crate) const TRAINER: &str = "echo dtrain-worker 0.1.0; echo libtorch 2.11.0 in /no/such/lib";

/// Builds `dtrain doctor ARGS` with this script as the trainer.
pub(crate) fn command(scene: &Scene, args: &[&str], trainer: &str) -> Command {
    let dtrain = Command::new(env!("CARGO_BIN_EXE_dtrain"));
    let mut command = scene.adapt(dtrain, &["doctor"]).into_command(args);
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"] {
        command.env_remove(name);
    }
    command.env("FAKE_WORKER", trainer);
    command
}

fn doctor(scene: &Scene, args: &[&str], trainer: &str, variables: &[(&str, &str)]) -> Finished {
    let mut command = command(scene, args, trainer);
    command.envs(variables.iter().copied());
    scene.start(command).wait()
}

/// Returns the level, value and remedy of the rows about one thing.
fn rows(json: &str, what: &str) -> Vec<[String; 3]> {
    let rows: serde_json::Value = serde_json::from_str(json).unwrap();
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = rows.as_array().unwrap().iter().filter(|row| row["what"] == what);
    rows.map(|row| ["level", "value", "remedy"].map(|key| text(row, key))).collect()
}

#[test]
fn each_thing_has_a_row_and_the_last_line_counts() {
    let scene = Scene::new();
    let done = doctor(&scene, &[], TRAINER, &[]);
    let text = done.stdout();
    for what in [
        "GPUs",
        "libtorch",
        "Python",
        "memory",
        "processors",
        "shared memory",
        "limits",
        "run directory",
        "file locks",
        "host name",
        "network",
        "ports",
        "clock",
        "boot id",
        "environment",
    ] {
        assert!(
            text.lines().any(|line| line.get(6..).is_some_and(|line| line.starts_with(what))),
            "{what}: {text}"
        );
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.contains("libtorch       2.11.0 for the CPU, starts in "), "{text}");
    let fails = text.lines().any(|line| line.starts_with("FAIL"));
    done.expect_code(i32::from(fails));
    let last = text.lines().last().unwrap();
    assert!(last.contains(" checks in ") && last.contains(" s: "), "{last}");
    scene.expect_nothing_written();
}

#[test]
fn json_has_the_rows() {
    let scene = Scene::new();
    let json = doctor(&scene, &["--json"], TRAINER, &[("RANK", "3")]).stdout();
    assert_eq!(json.lines().count(), 1);
    assert!(rows(&json, "libtorch")[0][1].starts_with("2.11.0 for the CPU, starts in "), "{json}");
    let [level, value, remedy] = &rows(&json, "environment")[0];
    assert_eq!((level.as_str(), value.as_str()), ("warn", "RANK set, as inside of a launch"));
    assert!(remedy.contains("unset RANK"), "{remedy}");
    assert_eq!(rows(&json, "file locks")[0][1], "work between processes");
}

#[test]
fn a_check_that_fails_gives_exit_code_1() {
    let scene = Scene::new();
    for (args, variables, text) in [
        (&["--run-dir", "/proc/run"][..], &[][..], "cannot write to /proc"),
        (&["--rdzv-interface", "no-such0"], &[], "this machine has no interface no-such0"),
        (&[], &[("GLOO_SOCKET_IFNAME", "no-such0")], "GLOO_SOCKET_IFNAME=no-such0 names no interface"),
    ] {
        let done = doctor(&scene, args, TRAINER, variables);
        let text_of = done.expect_code(1).stdout();
        let failed = text_of.lines().find(|line| line.starts_with("FAIL"));
        assert!(failed.is_some_and(|line| line.contains(text)), "{text_of}");
    }
    let trainer = "echo 'error while loading shared libraries: libtorch.so: cannot open' >&2; exit 127";
    let text = doctor(&scene, &[], trainer, &[]).expect_code(1).stdout();
    assert!(text.contains("FAIL  libtorch       the trainer cannot load it: error while"), "{text}");
    doctor(&scene, &["--no-such-flag"], TRAINER, &[]).expect_code(2);
}

#[test]
fn a_check_that_hangs_is_a_row_and_the_others_are_there() {
    let scene = Scene::new();
    let begun = Instant::now();
    let json = doctor(&scene, &["--json"], "exec sleep 60", &[]).stdout();
    // The limit is 3 s on an idle machine.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let [level, value, remedy] = &rows(&json, "libtorch")[0];
    assert_eq!((level.as_str(), value.as_str()), ("warn", "the trainer does not start within 2.3 s"));
    assert!(remedy.starts_with("run this command again"), "{remedy}");
    assert_eq!(rows(&json, "ports").len(), 1);
    scene.wait_until_gone("the trainer", Scene::alive);
}
