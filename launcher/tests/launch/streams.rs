//! The targets of the workers' output: torchrun's output flags and log directories.

use crate::harness::{Finished, Scene, words};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Prints its rank on both streams.
const BOTH: &str = "echo out$RANK; echo err$RANK >&2";

/// Returns the shown lines of both streams, without the launcher's own, sorted.
fn shown(done: &Finished) -> Vec<String> {
    let mut lines: Vec<String> = done
        .stdout()
        .lines()
        .chain(done.stderr.lines().filter(|line| !line.starts_with("dtrain: ")))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

/// Returns the files in this folder of the scene with their contents, by relative path, without records of attempts.
fn files(scene: &Scene, folder: &str) -> BTreeMap<String, String> {
    fn walk(folder: &Path, below: &str, files: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                walk(&entry.path(), &format!("{name}/"), files);
            } else if entry.file_name() != "attempt.json" {
                files.insert(name, fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(&scene.path(folder), "", &mut found);
    found
}

#[track_caller]
fn expect_files(scene: &Scene, folder: &str, expected: &[(&str, &str)]) {
    let expected = expected.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    assert_eq!(files(scene, folder), expected);
}

#[test]
fn a_log_directory_holds_one_attempt_after_the_other() {
    let scene = Scene::new();
    let script = format!(r#"{BOTH}; echo "$TORCHELASTIC_ERROR_FILE" > "$TEST_DIR/error.$RANK""#);
    for (attempt, spelling) in ["--log-dir", "--log_dir"].into_iter().enumerate() {
        let done = scene.sh(2, &[spelling, "a/logs"], &script);
        done.expect_code(0).expect_stderr(&format!("\ndtrain: logs in a/logs/attempt_{attempt}\n"));
        assert_eq!(shown(&done), ["[rank 0] err0", "[rank 0] out0", "[rank 1] err1", "[rank 1] out1"]);
        expect_files(
            &scene,
            &format!("a/logs/attempt_{attempt}"),
            &[
                ("rank_0/stderr.log", "err0\n"),
                ("rank_0/stdout.log", "out0\n"),
                ("rank_1/stderr.log", "err1\n"),
                ("rank_1/stdout.log", "out1\n"),
            ],
        );
        let error_file = scene.path(&format!("a/logs/attempt_{attempt}/rank_1/error.json"));
        assert_eq!(scene.read("error.1").trim(), error_file.to_str().unwrap());
    }
    assert!(
        !scene.path("a/result.json").exists() && !scene.path("a/logs/result.json").exists(),
        "a log directory is no run directory"
    );
}

#[test]
fn a_failure_names_its_log_in_the_log_directory() {
    let scene = Scene::new();
    scene
        .sh(1, &["--log-dir", "logs"], "echo broken >&2; exit 7")
        .expect_code(7)
        .expect_stderr("log: logs/attempt_0/rank_0/stderr.log");
    // If standard error is not kept, the report names no log, but has the last lines.
    let done = scene.sh(
        1,
        &["--log-dir", "logs", "-r", "1", "--local-ranks-filter", "0"],
        "echo broken >&2; exit 7",
    );
    done.expect_code(7).expect_stderr("      broken");
    assert!(!done.stderr.contains("\n  log: "), "{}", done.stderr);
}

#[test]
fn redirected_output_without_a_folder_goes_to_a_temporary_one_that_is_named_and_stays() {
    let scene = Scene::new();
    fs::create_dir(scene.path(".tmp")).unwrap();
    let mut command = scene.command(&["--nproc", "2", "-r", "3", "--", "sh", "-c", BOTH]);
    command.env("TMPDIR", scene.path(".tmp"));
    let done = scene.start(command).wait();
    assert_eq!(shown(done.expect_code(0)), [""; 0]);
    let line = done.stderr.lines().find_map(|line| line.strip_prefix("dtrain: logs in ")).unwrap();
    assert!(line.starts_with(scene.path(".tmp/dtrain-logs-").to_str().unwrap()), "{line}");
    assert_eq!(fs::read_to_string(format!("{line}/rank_1/stderr.log")).unwrap(), "err1\n");
}

#[test]
fn a_tmpdir_that_does_not_exist_stops_no_redirected_output() {
    let scene = Scene::new();
    let mut command = scene.command(&["--nproc", "1", "-r", "3", "--", "echo", "hello"]);
    command.env("TMPDIR", scene.path("missing"));
    let done = scene.start(command).wait();
    let folder =
        done.expect_code(0).stderr.lines().find_map(|line| line.strip_prefix("dtrain: logs in ")).unwrap();
    let log = fs::read_to_string(format!("{folder}/rank_0/stdout.log")).unwrap();
    fs::remove_dir_all(folder).unwrap();
    assert_eq!(log, "hello\n");
}

#[test]
fn redirected_output_is_kept_and_not_shown() {
    let scene = Scene::new();
    let done = scene.sh(2, &["--run-dir", "run", "-r", "0:3,1:1"], BOTH);
    done.expect_code(0);
    assert_eq!(shown(&done), ["[rank 1] err1"]);
    expect_files(
        &scene,
        "run/logs",
        &[
            ("attempt_0/rank_0/stderr.log", "err0\n"),
            ("attempt_0/rank_0/stdout.log", "out0\n"),
            ("attempt_0/rank_1/stdout.log", "out1\n"),
        ],
    );
}

#[test]
fn tee_shows_and_keeps_and_comes_before_redirects() {
    let scene = Scene::new();
    let done = scene.sh(2, &["--log-dir", "logs", "--redirects", "3", "--tee", "0:2"], BOTH);
    done.expect_code(0);
    assert_eq!(shown(&done), ["[rank 0] err0"]);
    assert_eq!(files(&scene, "logs").len(), 4);
    let done = scene.sh(2, &["--log-dir", "other", "-t", "1"], BOTH);
    done.expect_code(0);
    assert_eq!(shown(&done).len(), 4);
    expect_files(
        &scene,
        "other",
        &[("attempt_0/rank_0/stdout.log", "out0\n"), ("attempt_0/rank_1/stdout.log", "out1\n")],
    );
    let done = scene.sh(1, &["-t", "3"], "echo out");
    done.expect_code(0).expect_stderr("dtrain: --tee: the output is shown but not logged");
}

#[test]
fn ranks_that_are_filtered_out_are_kept_all_the_same() {
    let scene = Scene::new();
    let done = scene.sh(3, &["--run-dir", "run", "--local-ranks-filter", "0,2"], BOTH);
    done.expect_code(0);
    assert_eq!(shown(&done), ["[rank 0] err0", "[rank 0] out0", "[rank 2] err2", "[rank 2] out2"]);
    assert_eq!(files(&scene, "run/logs").len(), 6);
    let done = scene.sh(2, &["--local_ranks_filter=1"], BOTH);
    assert_eq!(shown(done.expect_code(0)), ["[rank 1] err1", "[rank 1] out1"]);
    scene
        .sh(2, &["--local-ranks-filter", "1"], "[ $RANK = 1 ] || { echo why >&2; exit 9; }; exec sleep 600")
        .expect_code(9)
        .expect_stderr("      why");
}

#[test]
fn the_prefix_is_filled_in() {
    let host = rustix::system::uname().nodename().to_str().unwrap().to_owned();
    let scene = Scene::new();
    let template = "[${role_name}${local_rank}|${rank}@${hostname}]: ";
    let flags = ["--log-line-prefix-template", template];
    let done = scene.sh(2, &flags, "echo out; printf last");
    let expected = |rank: u32, text: &str| format!("[default{rank}|{rank}@{host}]: {text}");
    assert_eq!(
        shown(done.expect_code(0)),
        [expected(0, "last"), expected(0, "out"), expected(1, "last"), expected(1, "out")]
    );
    let done = scene.sh(2, &["--log-line-prefix-template", ""], "echo out");
    assert_eq!(done.expect_code(0).stdout(), "out\nout\n", "an empty prefix is none");
    let mut command = scene.command(&["--nproc", "1", "--", "echo", "out"]);
    command.env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<$rank> ");
    assert_eq!(scene.start(command).wait().expect_code(0).stdout(), "<0> out\n");
    let mut command = scene.command(&["--", "echo", "out"]);
    command.env("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<$who> ");
    scene
        .start(command)
        .wait()
        .expect_code(2)
        .expect_stderr("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE is set wrongly")
        .expect_stderr("${who}");
}

#[test]
fn lines_with_certain_texts_are_copied() {
    let scene = Scene::new();
    let script = "echo step 1 loss 2; echo other; echo a,b; echo loss >&2; echo WARN: x >&2";
    let flags = words(
        "--log-dir logs --duplicate-stdout-filters loss,a,,b --duplicate_stderr_filters=WARN --local-ranks-filter 1,2",
    );
    scene.sh(3, &flags, script).expect_code(0);
    let mut copied: Vec<_> =
        scene.read("logs/attempt_0/filtered_stdout.log").lines().map(str::to_owned).collect();
    copied.sort();
    assert_eq!(copied, ["[rank 1] a,b", "[rank 1] step 1 loss 2", "[rank 2] a,b", "[rank 2] step 1 loss 2"]);
    let copied = scene.read("logs/attempt_0/filtered_stderr.log");
    assert_eq!(copied.lines().count(), 2);
    assert!(copied.contains("[rank 1] WARN: x\n"));
}

#[test]
fn wrong_flags_are_refused_before_anything_is_started_or_written() {
    let scene = Scene::new();
    fs::write(scene.path(".file"), "").unwrap();
    for (flags, says) in [
        (&["-t", "2:3", "--run-dir", "run"][..], "--tee: there is no local rank 2"),
        (&["--log-dir", ".file"], "choose another --log-dir"),
        (&["--log-dir", ".file/below"], "choose another --log-dir"),
        (&["--log-dir", ""], "--log-dir"),
        (&["--log-max-size", "-1", "--run-dir", "run"], "is not a size"),
    ] {
        scene.sh(2, flags, "echo > started").expect_code(2).expect_stderr(says);
        scene.expect_nothing_written();
    }
    for flags in [["--log-dir", "logs", "demo"], ["-t", "5:1", "demo"]] {
        scene.launch(&flags).expect_code(2);
        scene.expect_nothing_written();
    }
}

#[test]
fn a_recipes_logs_are_in_its_run_directory() {
    let scene = Scene::new();
    let flags = ["demo", "--nproc", "2", "--run-dir", "run", "-r", "3", "-t", "0:2"];
    let mut command = scene.command(&flags);
    command.env("FAKE_WORKER", BOTH);
    let done = scene.start(command).wait();
    // The last lines of the launch are indented.
    let lines = shown(done.expect_code(0));
    assert_eq!(lines.iter().filter(|line| !line.starts_with("  ")).collect::<Vec<_>>(), ["[rank 0] err0"]);
    assert_eq!(files(&scene, "run/logs").len(), 4);
    let mut command = scene.command(&["demo", "--log-dir", "logs"]);
    command.env("FAKE_WORKER", BOTH);
    scene.start(command).wait().expect_code(2).expect_stderr("--log-dir is for programs");
    assert!(!scene.path("logs").exists() && !scene.path("runs").exists());
}
