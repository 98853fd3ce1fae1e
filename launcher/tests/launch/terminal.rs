//! Progress frames on a real (pseudo) terminal.

use crate::harness::Scene;
use crate::pty::Pty;
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// Returns the launcher's output on a terminal of `columns`, for both streams, and its exit code.
fn on_terminal(scene: &Scene, columns: u16, flags: &[&str], script: &str) -> (String, Option<i32>) {
    on_terminal_to(scene, columns, flags, script, &[], None)
}

/// Runs with these variables, and with standard error in a file.
fn on_terminal_to(
    scene: &Scene,
    columns: u16,
    flags: &[&str],
    script: &str,
    vars: &[(&str, &str)],
    stderr: Option<PathBuf>,
) -> (String, Option<i32>) {
    let pty = Pty::new(columns);
    let mut command = scene.command(&[flags, &["--", "sh", "-c", script]].concat());
    command.env("TERM", "xterm").envs(vars.iter().copied());
    pty.attach(&mut command);
    if let Some(path) = stderr {
        command.stderr(File::create(path).unwrap());
    }
    let (shown, code) = pty.run(command);
    (String::from_utf8(shown).unwrap(), code)
}

const ERASE: &str = "\r\u{1b}[2K";

#[test]
fn a_frame_is_redrawn_around_lines_and_erased_at_the_end() {
    let scene = Scene::new();
    let script = r#"
        if [ $RANK = 0 ]; then
            printf ' 10%% of it\r' >&2; : > "$TEST_DIR/drawn"
            until [ -e "$TEST_DIR/said" ]; do sleep 0.01; done
        else
            until [ -e "$TEST_DIR/drawn" ]; do sleep 0.01; done
            sleep 0.5; echo from one; sleep 0.5; : > "$TEST_DIR/said"
        fi"#;
    let (shown, code) = on_terminal(&scene, 80, &["--nproc", "2"], script);
    assert_eq!(code, Some(0), "{shown}");
    let expected = format!(" 10% of it{ERASE}[rank 1] from one\r\n 10% of it{ERASE}");
    assert!(shown.ends_with(&expected), "{shown:?}");
}

#[test]
fn a_line_takes_the_place_of_its_own_frame() {
    let script = r"printf '50%%\r' >&2; sleep 0.5; printf 'done\n' >&2";
    let flags = ["--nproc", "1", "--run-dir", "run"];
    let (shown, _) = on_terminal(&Scene::new(), 80, &flags, script);
    assert!(shown.ends_with(&format!("50%{ERASE}done\r\n")), "{shown:?}");
}

#[test]
fn frames_are_cut_to_the_width_and_those_of_other_ranks_are_dropped() {
    let script = r"printf '%s 123456789012345678901234567890\r' $RANK >&2; sleep 0.5";
    let (shown, _) = on_terminal(&Scene::new(), 12, &["--nproc", "2"], script);
    assert!(shown.ends_with(&format!("0 123456789{ERASE}")), "{shown:?}");
    assert!(!shown.contains("1 123"), "{shown:?}");
}

#[test]
fn bars_that_begin_with_the_carriage_return_are_seen_at_once() {
    let script = r"printf '\r 10%%' >&2; sleep 0.5; printf '\r 20%%' >&2; sleep 0.5; printf '\r100%%\n' >&2";
    let (shown, _) = on_terminal(&Scene::new(), 80, &["--nproc", "1"], script);
    assert!(shown.contains(" 10%") && shown.contains(" 20%") && shown.ends_with("100%\r\n"), "{shown:?}");
}

#[test]
fn the_only_worker_or_the_named_one_has_the_terminal_as_its_standard_output() {
    let terminal = r#"test -t 1 && echo "$RANK terminal" || echo "$RANK pipe""#;
    let of = |flags: &[&str]| on_terminal(&Scene::new(), 80, flags, terminal).0;
    assert!(of(&["--nproc", "1"]).contains("terminal"));
    let named = of(&["--nproc", "2", "--stdin-rank", "1"]);
    assert!(
        named.contains("[rank 0] 0 pipe") && named.contains("1 terminal") && !named.contains("[rank 1]"),
        "{named:?}"
    );
    for flags in [
        &["--nproc", "2"][..],
        &["--nproc", "1", "--run-dir", "run"],
        &["--nproc", "2", "--stdin-rank", "1", "--run-dir", "run"],
        &["--nproc", "1", "--log-line-prefix-template", "x "],
    ] {
        let shown = of(flags);
        assert!(shown.contains("pipe") && !shown.contains("terminal"), "{flags:?}: {shown:?}");
    }
}

#[test]
fn the_only_worker_writes_to_a_terminal_of_the_same_size_on_both_streams() {
    let script = r"stty size <&1; stty size <&2; printf '\r 10%%' >&2; printf '\r    \r'; echo text; printf ' 20%%\n' >&2";
    let (shown, _) = on_terminal(&Scene::new(), 77, &["--nproc", "1"], script);
    assert!(shown.ends_with("24 77\r\n24 77\r\n\r 10%\r    \rtext\r\n 20%\r\n"), "{shown:?}");
}

#[test]
fn a_stream_that_alone_is_a_terminal_is_one_for_the_only_worker() {
    let scene = Scene::new();
    let script = "test -t 1 && echo terminal; test -t 2 || echo file >&2";
    let (shown, _) = on_terminal_to(&scene, 80, &["--nproc", "1"], script, &[], Some(scene.path(".err")));
    assert_eq!(shown, "terminal\r\n");
    assert!(scene.read(".err").ends_with("\nfile\n"));
}

#[test]
fn a_new_size_of_the_window_reaches_the_only_worker() {
    let scene = Scene::new();
    let script = r#"trap 'stty size <&2; exit' WINCH; : > "ready.$RANK"; while :; do sleep 0.05; done"#;
    let pty = Pty::new(80);
    let mut command = scene.command(&["--nproc", "1", "--", "sh", "-c", script]);
    pty.attach(&mut command);
    let mut child = command.spawn().unwrap();
    drop(command);
    scene.wait_for_ready(1);
    let size = Winsize { ws_row: 33, ws_col: 44, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&pty.person, size).unwrap();
    let mut shown = Vec::new();
    let _ = File::from(pty.person).read_to_end(&mut shown);
    assert!(child.wait().unwrap().success());
    assert!(shown.ends_with(b"33 44\r\n"), "{:?}", String::from_utf8_lossy(&shown));
}

#[test]
fn text_that_a_worker_prints_over_its_bar_is_a_line_and_the_bar_stays() {
    let scene = Scene::new();
    let script = r#"
        bar() { printf '\r %s%%|#  | 4/40 [00:01<00:09, 3.98it/s]' $1 >&2; }
        if [ $RANK = 0 ]; then bar 10; echo "{'loss': 1}"; bar 20; sleep 0.5; fi"#;
    let (shown, _) = on_terminal(&scene, 80, &["--nproc", "2"], script);
    assert!(shown.contains("[rank 0] {'loss': 1}\r\n"), "{shown:?}");
    let bar = " 20%|#  | 4/40 [00:01<00:09, 3.98it/s]";
    let end = format!("{bar}{ERASE}[rank 0] {bar}\r\n");
    assert!(shown.ends_with(&end) && !shown.contains("it/s]{"), "{shown:?}");
}

#[test]
fn a_bar_on_standard_output_is_drawn_where_only_that_is_a_terminal() {
    let scene = Scene::new();
    let script =
        r"printf '\r 10%%'; sleep 0.5; printf '\r 20%%'; sleep 0.5; printf '\r100%%\n'; printf '\r err' >&2";
    let (shown, _) = on_terminal_to(&scene, 80, &["--nproc", "2"], script, &[], Some(scene.path(".err")));
    assert!(
        shown.contains(" 10%") && shown.contains(" 20%") && shown.contains("[rank 0] 100%\r\n"),
        "{shown:?}"
    );
    assert!(scene.read(".err").contains("[rank 1]  err\n"));
}

#[test]
fn a_prompt_is_seen_at_once_and_ends_where_another_rank_begins() {
    let scene = Scene::new();
    let script = r#"
        if [ $RANK = 0 ]; then
            printf 'Name: '; : > "$TEST_DIR/asked"; until [ -e "$TEST_DIR/said" ]; do sleep 0.01; done; echo Ada
        else
            until [ -e "$TEST_DIR/asked" ]; do sleep 0.01; done
            sleep 0.7; echo whole; sleep 0.7; : > "$TEST_DIR/said"
        fi"#;
    let (shown, _) = on_terminal(&scene, 80, &["--nproc", "2"], script);
    let expected = "[rank 0] Name: \r\n[rank 1] whole\r\n[rank 0] Ada\r\n";
    assert!(shown.ends_with(expected), "{shown:?}");
}

#[test]
fn the_workers_are_told_whether_frames_are_shown() {
    let script = "echo progress=$DTRAIN_PROGRESS";
    for (vars, expected) in [
        (&[][..], "progress=terminal"),
        (&[("TERM", "dumb")], "progress=lines"),
        (&[("DTRAIN_PROGRESS", "lines")], "progress=lines"),
    ] {
        let (shown, _) = on_terminal_to(&Scene::new(), 80, &["--nproc", "1"], script, vars, None);
        assert!(shown.contains(expected), "{vars:?}: {shown:?}");
    }
}

#[test]
fn a_bar_that_nobody_would_see_is_not_asked_for() {
    let scene = Scene::new();
    let script = r"echo progress=$DTRAIN_PROGRESS; printf ' 10%%\rdone\n' >&2";
    let flags = ["--nproc", "1", "--run-dir", "run", "--redirects", "2"];
    let (shown, code) = on_terminal(&scene, 80, &flags, script);
    assert_eq!(code, Some(0));
    assert!(shown.contains("progress=lines"), "{shown:?}");
    assert!(!shown.contains("10%") && !shown.contains("done"), "{shown:?}");
    assert_eq!(scene.read("run/logs/attempt_0/rank_0/stderr.log"), " 10%\rdone\n");
}
