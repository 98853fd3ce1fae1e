//! The workers' output: whole lines, every byte, logs, result.json, and readers that exit.

use crate::harness::{Scene, wait_until};
use std::collections::BTreeMap;
use std::io::Read;
use std::process::Stdio;

#[test]
fn long_lines_of_several_ranks_are_never_torn_and_none_is_lost() {
    let (ranks, lines, length) = (4, 400, 9000);
    let script = format!(
        r#"awk -v r=$RANK 'BEGIN {{ for (x = "x"; length(x) < {length}; x = x x); x = substr(x, 1, {length});
             for (i = 0; i < {lines}; i++) print r ":" i ":" x >> (i % 2 ? "/dev/stderr" : "/dev/stdout") }}'"#
    );
    let scene = Scene::new();
    let done = scene.sh(ranks, &["--run-dir", "run"], &script);
    done.expect_code(0);
    let mut next = BTreeMap::new();
    let out = done.stdout();
    let err: String =
        done.stderr.lines().filter(|line| !line.starts_with("dtrain: ")).map(|l| format!("{l}\n")).collect();
    for (text, first) in [(&out, 0), (&err, 1)] {
        for line in text.lines() {
            let (prefix, rest) = line.split_once("] ").unwrap();
            let rank: usize = prefix.strip_prefix("[rank ").unwrap().parse().unwrap();
            let expected = next.entry((rank, first)).or_insert(first);
            assert_eq!(
                rest,
                format!("{rank}:{expected}:{}", "x".repeat(length)),
                "lines of one rank stay in order"
            );
            *expected += 2;
        }
    }
    assert_eq!(next.len(), ranks * 2);
    assert!(next.iter().all(|((_, first), next)| *next == lines + first), "{next:?}");
    let log = scene.read("run/logs/attempt_0/rank_3/stdout.log");
    assert_eq!(log.lines().count(), lines / 2);
    assert!(log.starts_with("3:0:xxx"), "without the prefix");
}

#[test]
fn a_single_worker_writes_unprefixed_bytes() {
    let done = Scene::new().sh(1, &[], r"printf 'one\n\377\376\0two\r\nlast'; printf 'err' >&2");
    done.expect_code(0);
    assert_eq!(done.stdout, b"one\n\xff\xfe\0two\r\nlast");
    assert_eq!(done.stderr, "dtrain: 1 worker of sh\nerr");
}

#[test]
fn a_last_line_without_end_is_kept() {
    let scene = Scene::new();
    let done = scene.sh(2, &["--run-dir", "run"], r"printf 'first\nlast'; printf 'err\377' >&2");
    done.expect_code(0);
    let mut lines: Vec<_> = done.stdout().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[rank 0] first", "[rank 0] last", "[rank 1] first", "[rank 1] last"]);
    assert_eq!(scene.read("run/logs/attempt_0/rank_1/stdout.log"), "first\nlast");
    let log = std::fs::read(scene.path("run/logs/attempt_0/rank_0/stderr.log")).unwrap();
    assert_eq!(log, b"err\xff");
}

#[test]
fn progress_bars_are_complete_for_one_worker_and_in_logs() {
    let scene = Scene::new();
    let done =
        scene.sh(1, &["--run-dir", "run"], r"printf '10%%\r20%%\rdone\n' >&2; printf '\r 5%%\r 9%%\n'");
    done.expect_code(0).expect_stderr("\n10%\r20%\rdone\n");
    assert_eq!(done.stdout(), "\r 5%\r 9%\n");
    assert_eq!(scene.read("run/logs/attempt_0/rank_0/stderr.log"), "10%\r20%\rdone\n");
    assert_eq!(scene.read("run/logs/attempt_0/rank_0/stdout.log"), "\r 5%\r 9%\n");
}

#[test]
fn bars_of_several_workers_are_lines_where_there_is_no_terminal() {
    let scene = Scene::new();
    let script = r#"
        printf '\r 0%%' >&2; until [ -e "$TEST_DIR/seen" ]; do sleep 0.01; done
        for n in 1 2 3 4; do printf '\r%s0%%' $n >&2; done; printf '\r100%%\n' >&2"#;
    let launch = scene.start(scene.command(&["--nproc", "2", "--run-dir", "run", "--", "sh", "-c", script]));
    launch.wait_for_stderr("[rank 0]  0%\n");
    launch.wait_for_stderr("[rank 1]  0%\n");
    std::fs::write(scene.path("seen"), "").unwrap();
    let done = launch.wait();
    done.expect_code(0).expect_stderr("[rank 0] 100%\n").expect_stderr("[rank 1] 100%\n");
    assert_eq!(scene.read("run/logs/attempt_0/rank_1/stderr.log"), "\r 0%\r10%\r20%\r30%\r40%\r100%\n");
}

#[test]
fn a_line_that_has_only_begun_is_seen_and_tears_no_other() {
    let scene = Scene::new();
    let script = r#"
        if [ $RANK = 0 ]; then
            printf 'Name: '; until [ -e "$TEST_DIR/other" ]; do sleep 0.01; done; echo Ada
        else
            until [ -e "$TEST_DIR/seen" ]; do sleep 0.01; done; echo whole; : > "$TEST_DIR/said"
        fi"#;
    let launch = scene.start(scene.command(&["--nproc", "2", "--", "sh", "-c", script]));
    launch.wait_for_stdout("[rank 0] Name: ");
    std::fs::write(scene.path("seen"), "").unwrap();
    launch.wait_for_stdout("[rank 1] whole\n");
    std::fs::write(scene.path("other"), "").unwrap();
    let done = launch.wait();
    assert_eq!(done.expect_code(0).stdout(), "[rank 0] Name: \n[rank 1] whole\n[rank 0] Ada\n");
}

#[test]
fn a_log_has_what_was_written_before_the_line_ends() {
    let scene = Scene::new();
    let script = r#"printf 'loading ...'; until [ -e "$TEST_DIR/go" ]; do sleep 0.01; done"#;
    let launch = scene.start(scene.command(&["--nproc", "2", "--run-dir", "run", "--", "sh", "-c", script]));
    let log = scene.path("run/logs/attempt_0/rank_1/stdout.log");
    wait_until("the log to have it", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text == "loading ...")
    });
    std::fs::write(scene.path("go"), "").unwrap();
    launch.wait().expect_code(0);
}

#[test]
fn a_program_with_a_run_directory_gets_a_result() {
    let scene = Scene::new();
    scene.sh(2, &["--run-dir", "a/b"], "exit 0").expect_code(0);
    let result: serde_json::Value = serde_json::from_str(&scene.read("a/b/result.json")).unwrap();
    assert_eq!((result["exit_code"].as_u64(), result["nproc"].as_u64()), (Some(0), Some(2)));
    assert_eq!(result["restarts"], 0);
    assert!(result["wall_s"].as_f64().unwrap() > 0.0);
    assert!(result.get("failure").is_none());

    scene
        .sh(2, &["--run-dir", "c"], "[ $RANK = 0 ] && exec sleep 600; echo why >&2; kill -9 $$")
        .expect_code(137);
    let result: serde_json::Value = serde_json::from_str(&scene.read("c/result.json")).unwrap();
    assert_eq!(result["exit_code"], 137);
    let failure = &result["failure"];
    assert_eq!((failure["rank"].as_u64(), failure["signal"].as_str()), (Some(1), Some("SIGKILL")));
    assert_eq!(failure["message"], "why");
    assert!(!failure["host"].as_str().unwrap().is_empty());
    assert!(failure.get("exit_code").is_none());
}

#[test]
fn without_a_run_directory_nothing_is_written() {
    let scene = Scene::new();
    scene.sh(2, &[], "echo hello").expect_code(0);
    scene.expect_nothing_written();
}

/// More bytes than every pipe and buffer between can hold.
const FLOOD: &str =
    r#"yes 0123456789 | head -n 200000; echo "$RANK is through" >&2; : > "$TEST_DIR/through.$RANK""#;

#[test]
fn a_reader_that_goes_away_does_not_stop_the_run() {
    let scene = Scene::new();
    let mut command = scene.command(&["--nproc", "2", "--", "sh", "-c", FLOOD]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 100]).unwrap();
    drop(stdout);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert!(said.contains("[rank 0] 0 is through") && said.contains("[rank 1] 1 is through"), "{said}");
    assert!(!said.contains("panicked") && !said.contains("cannot write"), "{said}");
    assert!(scene.path("through.0").exists() && scene.path("through.1").exists());
}

#[test]
fn both_streams_may_go_away_and_failures_still_have_their_code() {
    let scene = Scene::new();
    let script = format!("{FLOOD}; exit 3");
    let mut command = scene.command(&["--nproc", "1", "--", "sh", "-c", &script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_full_device_is_told_and_the_run_goes_on() {
    let scene = Scene::new();
    let mut command = scene.command(&["--nproc", "1", "--", "sh", "-c", "echo lost; exit 0"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("cannot write to standard output: No space left"),
        "{said}"
    );
}

#[test]
fn a_reader_that_does_not_read_delays_no_decision() {
    let scene = Scene::new();
    let script = r#"
        echo $$ > "$TEST_DIR/pid.$RANK"
        if [ $RANK = 0 ]; then exec yes; fi
        until [ -s "$TEST_DIR/pid.0" ]; do sleep 0.01; done
        sleep 0.5
        exit 6"#;
    let mut command = scene.command(&["--nproc", "2", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the workers to run", || scene.path("pid.1").exists());
    scene.wait_until_gone("the workers, though nobody reads,", Scene::workers);
    let mut rest = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(6));
    assert!(rest.len() > 64 * 1024, "what had been read from the worker is still shown");
}
