//! Exit codes of programs, and messages about failures.

use crate::harness::Scene;
use std::fs;

#[test]
fn a_programs_exit_code_is_passed_through() {
    for code in [0, 1, 2, 4, 42, 75, 130, 255] {
        for nproc in [1, 2] {
            Scene::new().sh(nproc, &[], &format!("exit {code}")).expect_code(code);
        }
    }
}

#[test]
fn a_program_killed_by_a_signal_gives_128_plus_its_number() {
    for (signal, name, code) in [("KILL", "SIGKILL", 137), ("TERM", "SIGTERM", 143), ("SEGV", "SIGSEGV", 139)]
    {
        let done = Scene::new().sh(2, &[], &format!("[ $RANK = 0 ] && exec sleep 600; kill -{signal} $$"));
        done.expect_code(code).expect_stderr("rank 1 (pid ").expect_stderr(&format!("killed by {name}"));
        done.expect_stderr(&format!("exit code {code}: the program was killed by {name}"));
    }
}

#[test]
fn the_banner_has_rank_pid_code_last_lines_and_log() {
    let scene = Scene::new();
    let script = r#"
        if [ $RANK != 1 ]; then exec sleep 600; fi
        echo $$ > "$TEST_DIR/pid"; i=0
        while [ $i -lt 50 ]; do i=$((i + 1)); echo "line $i of it" >&2; done
        exit 42"#;
    let done = scene.sh(3, &["--run-dir", "run"], script);
    done.expect_code(42);
    let pid = scene.read("pid");
    let banner = &done.stderr[done.stderr.find("dtrain: rank 1 (pid ").unwrap()..];
    assert!(banner.starts_with(&format!("dtrain: rank 1 (pid {}) failed after ", pid.trim())), "{banner}");
    assert!(banner.contains(": exit code 42\n"), "{banner}");
    assert!(!banner.contains("line 30 of it") && banner.contains("      line 31 of it\n"), "{banner}");
    assert!(banner.contains("      line 50 of it\n"), "{banner}");
    assert!(banner.contains("log: run/logs/attempt_0/rank_1/stderr.log\n"), "{banner}");
    assert!(
        banner.contains("stopped as a consequence: rank 0 (killed by SIGTERM), rank 2 (killed by SIGTERM)\n")
    );
    assert!(banner.ends_with("dtrain: exit code 42: the program exited with code 42\n"), "{banner}");
}

#[test]
fn an_error_file_goes_before_the_last_lines() {
    let script = r#"
        echo noise >&2
        printf '%s\n' '{"message":{"message":"ValueError: the cause\nline two","extraInfo":{}}}' > "$TORCHELASTIC_ERROR_FILE"
        exit 1"#;
    let done = Scene::new().sh(1, &[], script);
    done.expect_code(1).expect_stderr("    ValueError: the cause\n    line two\n");
    assert!(!done.stderr.contains("last lines of standard error"), "{}", done.stderr);
}

#[test]
fn error_files_of_other_ranks_are_reported_once() {
    let script = r#"
        trap '' TERM
        say() { printf '{"message":{"message":"%s","extraInfo":{}}}' "$1" > "$TORCHELASTIC_ERROR_FILE"; }
        if [ $RANK = 0 ]; then
            until [ -e "$TEST_DIR/up.1" ] && [ -e "$TEST_DIR/up.2" ]; do sleep 0.01; done
            say 'the disk is full'
            exit 3
        fi
        say 'the shard is gone'
        : > "$TEST_DIR/up.$RANK"
        sleep 0.5
        exit 4"#;
    let done = Scene::new().sh(3, &[], script);
    done.expect_code(3).expect_stderr("    the disk is full\n").expect_stderr(": the shard is gone\n");
    assert_eq!(done.stderr.matches("the shard is gone").count(), 1, "{}", done.stderr);
}

#[test]
fn a_failure_without_a_word_is_said_to_be_one() {
    Scene::new().sh(1, &[], "exit 3").expect_code(3).expect_stderr("nothing on standard error");
}

#[test]
fn others_that_fail_by_themselves_are_listed_not_blamed() {
    // Ranks 0 and 1 run on; rank 2 fails after both are ready.
    let script = r#"
        trap 'exit 9' TERM
        : > "$TEST_DIR/up.$RANK"
        if [ $RANK = 2 ]; then
            until [ -e "$TEST_DIR/up.0" ] && [ -e "$TEST_DIR/up.1" ]; do sleep 0.01; done
            exit 5
        fi
        while :; do sleep 0.05; done"#;
    let done = Scene::new().sh(3, &[], script);
    done.expect_code(5).expect_stderr("dtrain: rank 2 (pid ");
    done.expect_stderr("  stopped as a consequence: rank 0 (exit code 9), rank 1 (exit code 9)\n");
}

#[test]
fn a_program_that_is_not_there_or_cannot_be_executed_gives_2_and_writes_nothing() {
    let scene = Scene::new();
    let make = |name: &str, content: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        fs::write(scene.path(name), content).unwrap();
        fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    make(".plain", "#!/bin/sh\n", 0o644);
    make(".shell", "exit 0\n", 0o755);
    make(".lost", "#!/no/such/interpreter\n", 0o755);
    let cases = [
        ("no-such-program-anywhere", "is not in PATH"),
        ("./absent", "does not exist"),
        ("./.plain", "is not executable; run `chmod +x "),
        ("/", "is not a file"),
        (".shell", "is not in PATH; to run the file in this folder, write `./.shell`"),
        (
            "./.lost",
            "cannot start `./.lost` for rank 0: the interpreter named in its first line does not exist",
        ),
    ];
    for (program, message) in cases {
        scene
            .launch(&["--nproc", "2", "--run-dir", "run", "--", program])
            .expect_code(2)
            .expect_stderr(message);
        scene.expect_nothing_written();
    }
}
