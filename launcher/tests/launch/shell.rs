//! The launcher in a shell: process substitution, background jobs, job control.

use crate::harness::{Finished, Scene, kill, wait_until};
use crate::pty::{Shell, wait_until_suspended};
use dtrain_test_kit::need::{self, Need};
use rustix::process::Signal;
use std::process::Command;

/// Runs this bash script to its end; `$DTRAIN` is the launcher. Processes of the script may outlive it.
#[track_caller]
fn bash(scene: &Scene, script: &str) -> Finished {
    let mut command = scene.adapt(Command::new("bash"), &["-c", script]).into_command::<&str>(&[]);
    command.env("DTRAIN", env!("CARGO_BIN_EXE_dtrain"));
    scene.start(command).wait_leaving_processes()
}

const MANY_LINES: &str = "for i in $(seq 200); do echo line $i; done; echo Warning: one >&2";

#[test]
fn a_reader_made_by_the_shell_gets_everything() {
    let scene = Scene::new();
    let script = format!(
        r#""$DTRAIN" launch --nproc 2 -- sh -c '{MANY_LINES}' &> >(gzip > v.gz)
        code=$?; zcat v.gz | grep -c 'line 200'; exit $code"#
    );
    let done = bash(&scene, &script);
    assert_eq!(done.expect_code(0).stdout(), "2\n");
}

#[test]
fn a_filter_of_standard_error_gets_the_report_of_a_failure() {
    let scene = Scene::new();
    let script = format!(
        r#""$DTRAIN" launch --nproc 1 -- sh -c '{MANY_LINES}; exit 7' 2> >(grep -v Warning > err.log) > out.log"#
    );
    bash(&scene, &script).expect_code(7);
    let kept = scene.read("err.log");
    assert!(kept.contains("exit code 7") && !kept.contains("Warning"), "{kept}");
    assert!(scene.read("out.log").ends_with("line 200\n"));
}

#[test]
fn a_log_of_the_whole_script_has_its_tail() {
    let scene = Scene::new();
    let script = format!(
        r#"exec > >(sleep 0.3; tee log) 2>&1; exec "$DTRAIN" launch --nproc 1 -- sh -c '{MANY_LINES}; exit 7'"#
    );
    bash(&scene, &script).expect_code(7);
    let kept = scene.read("log");
    assert!(kept.contains("line 200\n") && kept.contains("dtrain: exit code 7"), "{kept}");
}

#[test]
fn background_jobs_and_what_they_start_outlive_the_run() {
    let scene = Scene::new();
    // The second job leaves an orphan during the run.
    let script = r#"
        sleep 600 & echo $! > job
        { until [ -e running ]; do sleep 0.01; done; (sleep 600 & echo $! > orphan); sleep 600; } &
        exec "$DTRAIN" launch --nproc 1 -- sh -c ': > running; until [ -e orphan ]; do sleep 0.01; done'"#;
    bash(&scene, script).expect_code(0);
    for file in ["job", "orphan"] {
        let pid: u32 = scene.read(file).trim().parse().unwrap();
        assert!(scene.alive().contains(&pid), "{file} was killed");
    }
}

#[test]
fn a_launch_with_background_jobs_that_is_killed_leaves_only_these() {
    let scene = Scene::new();
    let script = r#"
        sleep 600 & echo $! > job
        exec "$DTRAIN" launch --nproc 2 -- sh -c 'sleep 600 & : > "ready.$RANK"; wait'"#;
    let mut command = scene.adapt(Command::new("bash"), &["-c", script]).into_command::<&str>(&[]);
    command.env("DTRAIN", env!("CARGO_BIN_EXE_dtrain"));
    let launch = scene.start(command);
    scene.wait_for_ready(2);
    launch.signal(rustix::process::Signal::KILL);
    assert_eq!(launch.wait_leaving_processes().code, None);
    let job: u32 = scene.read("job").trim().parse().unwrap();
    wait_until("everything of the run to be gone", || scene.alive() == [job]);
}

#[test]
fn workers_do_not_inherit_descriptors_except_those_named_on_the_command_line() {
    let scene = Scene::new();
    let script = r#"
        exec 7> seven
        "$DTRAIN" launch --nproc 1 -- sh -c 'ls /proc/self/fd | grep -c "^[4-9]$"; cat "$0"' <(echo named)"#;
    let done = bash(&scene, script);
    assert_eq!(done.expect_code(0).stdout(), "0\nnamed\n");
}

/// Counts in `count.RANK` while it is not suspended.
const COUNTS: &str = r#"sh -c 'while :; do echo >> "count.$RANK"; : > "ready.$RANK"; sleep 0.02; done'"#;

#[test]
fn ctrl_z_suspends_the_whole_job_and_fg_and_bg_continue_it() {
    let (scene, mut shell) = Shell::start();
    let job = || [scene.workers(), scene.launcher()].concat();
    let goes_on = || {
        let before = scene.read("count.1").len();
        wait_until("the job to continue", || scene.read("count.1").len() > before);
    };
    shell.line(&format!(r#""$DTRAIN" launch --nproc 2 -- {COUNTS}"#));
    scene.wait_for_ready(2);
    shell.keys(b"\x1a");
    shell.expect("Stopped");
    wait_until_suspended(job);
    shell.line("bg");
    goes_on();
    shell.line("fg");
    shell.wait_until_a_job_has_the_terminal();
    // A shell's `kill %1` sends the signal, and SIGCONT.
    shell.keys(b"\x1a");
    shell.expect("Stopped");
    wait_until_suspended(job);
    shell.line("kill %1; wait %1; echo code $?");
    shell.expect("code 143");
    wait_until("nothing to be left", || job().is_empty());
}

#[test]
fn ctrl_z_suspends_nothing_where_no_shell_could_continue_it() {
    let (scene, mut shell) = Shell::start();
    // As with `ssh host dtrain ...`, the launcher leads the session.
    shell.line(&format!(r#"exec "$DTRAIN" launch --nproc 2 -- {COUNTS}"#));
    scene.wait_for_ready(2);
    shell.keys(b"\x1a");
    shell.keys(b"\x03");
    shell.expect("stopped by SIGINT");
    wait_until("nothing to be left", || scene.alive().is_empty());
}

#[test]
fn tostop_stops_no_launch_in_the_foreground() {
    let (_scene, mut shell) = Shell::start();
    shell.line(r#"stty tostop; "$DTRAIN" launch --nproc 1 -- echo he''llo; echo code $?"#);
    shell.expect("hello");
    shell.expect("code 0");
}

/// Prints the line that each rank reads.
const READS: &str = r#"sh -c 'read line; echo "rank $RANK got <$line>"; sleep "$0"' 0"#;

#[test]
fn a_single_worker_reads_from_the_terminal() {
    let (_scene, mut shell) = Shell::start();
    shell.line(&format!(r#""$DTRAIN" launch --nproc 1 -- {READS}; echo code $?"#));
    shell.line("typed");
    shell.expect("got <typed>");
    shell.expect("code 0");
}

#[test]
fn the_named_rank_alone_reads_from_the_terminal() {
    let (_scene, mut shell) = Shell::start();
    shell.line(&format!(r#""$DTRAIN" launch --nproc 2 -- {READS}; echo code $?"#));
    shell.expect("code 0");
    shell.line(&format!(r#""$DTRAIN" launch --nproc 3 --stdin-rank 1 -- {READS}; echo code $?"#));
    shell.expect("rank 2 got <>");
    shell.line("typed");
    shell.expect("rank 1 got <typed>");
    shell.expect("code 0");
}

/// Also if the job ignores Ctrl-Z.
#[test]
fn a_worker_that_reads_in_the_background_suspends_the_job_until_fg() {
    for ignores in ["", "trap '' TSTP; "] {
        let (scene, mut shell) = Shell::start();
        shell.line(&format!(r#"({ignores}exec "$DTRAIN" launch --nproc 1 -- {READS}) &"#));
        wait_until("the launcher to run", || scene.launcher().len() == 1);
        wait_until_suspended(|| [scene.workers(), scene.launcher()].concat());
        // The shell's own child stops last.
        shell.line(r#"until [ -n "$(jobs -s)" ]; do sleep 0.1; done; fg; echo code $?"#);
        shell.wait_until_a_job_has_the_terminal();
        shell.line("typed");
        shell.expect("got <typed>");
        shell.expect("code 0");
    }
}

#[test]
fn ctrl_z_and_ctrl_c_reach_a_worker_that_has_the_terminal() {
    let (scene, mut shell) = Shell::start();
    let script = r#"sh -c 'read line; : > reading; read line; echo "got <$line>"; read line'"#;
    shell.line(&format!(r#""$DTRAIN" launch --nproc 1 -- {script}; echo code $?"#));
    shell.line("first");
    wait_until("the worker to have the terminal", || scene.path("reading").exists());
    shell.keys(b"\x1a");
    shell.expect("Stopped");
    wait_until_suspended(|| [scene.workers(), scene.launcher()].concat());
    shell.line("fg; echo code $?");
    shell.line("second");
    shell.expect("got <second>");
    shell.keys(b"\x03");
    shell.expect("code 130");
}

#[test]
fn ctrl_c_stops_the_whole_job_after_a_worker_has_read_a_line() {
    let (scene, mut shell) = Shell::start();
    let script = r#"sh -c 'if [ $RANK = 0 ]; then read line; fi; : > "ready.$RANK"; exec sleep 600'"#;
    shell.line(&format!(
        r#""$DTRAIN" launch --nproc 2 --stdin-rank 0 --max-restarts 3 -- {script}; echo code $?"#
    ));
    shell.line("typed");
    scene.wait_for_ready(2);
    wait_until("the terminal to be the job's again", || !scene.workers().contains(&shell.foreground()));
    shell.keys(b"\x03");
    shell.expect("received SIGINT, passed on to 2 workers");
    shell.expect("stopped by SIGINT");
    shell.expect("code 130");
}

#[test]
fn after_ctrl_c_on_the_stdin_worker_others_keep_their_time() {
    let (scene, mut shell) = Shell::start();
    // Rank 0 dies of the signal so late that a second Ctrl-C would count as another request.
    let reads = r#"read line; trap "sleep 1; trap - INT; kill -INT \$\$" INT"#;
    let saves = r#"trap "sleep 2.5; echo rank 1 is whole; exit 0" INT"#;
    let waits = r#": > "ready.$RANK"; while :; do sleep 0.05; done"#;
    let script = format!("sh -c 'if [ $RANK = 0 ]; then {reads}; else {saves}; fi; {waits}'");
    shell.line(&format!(r#""$DTRAIN" launch --nproc 2 --stdin-rank 0 -- {script}; echo code $?"#));
    shell.line("typed");
    scene.wait_for_ready(2);
    wait_until("the terminal to be the job's again", || !scene.workers().contains(&shell.foreground()));
    shell.keys(b"\x03");
    shell.expect("received SIGINT, passed on to 2 workers");
    shell.expect("[rank 1] rank 1 is whole");
    shell.expect("code 130");
}

/// Reads key by key, as a debugger does.
const READS_KEYS: &str = r#"stty -icanon; : > "ready.$RANK"; read line"#;

#[test]
fn a_worker_that_dies_of_ctrl_c_while_it_reads_key_by_key_stops_the_whole_job() {
    let (scene, mut shell) = Shell::start();
    shell.line(&format!(
        r#""$DTRAIN" launch --nproc 1 --max-restarts 3 -- sh -c '{READS_KEYS}'; echo code $?"#
    ));
    scene.wait_for_ready(1);
    assert!(scene.workers().contains(&shell.foreground()));
    shell.keys(b"\x03");
    shell.expect("stopped by SIGINT");
    shell.expect("code 130");
}

#[test]
fn ctrl_z_stops_no_worker_that_reads_where_no_shell_could_continue_it() {
    let (scene, mut shell) = Shell::start();
    shell.line(&format!(r#"exec "$DTRAIN" launch --nproc 1 -- sh -c '{READS_KEYS}; echo "got <$line>"'"#));
    scene.wait_for_ready(1);
    shell.keys(b"\x1a");
    shell.line("typed");
    shell.expect("got <typed>");
    wait_until("nothing to be left", || scene.alive().is_empty());
}

/// Prints whether the terminal reads lines, when it does so at the latest.
const COOKED: &str = r#"n=0; until stty -a | grep -q " icanon" || [ $n = 100 ]; do sleep 0.1; n=$((n + 1)); done; stty -a | grep -o "[^ ]icanon" || echo coo''ked"#;

#[test]
fn the_terminal_is_as_before_after_a_worker_at_a_prompt_was_stopped_or_killed() {
    for signal in [Signal::TERM, Signal::KILL] {
        for victim in ["worker", "launcher", "guardian"] {
            let (scene, mut shell) = Shell::start();
            let script = r#"stty -icanon -echo; : > "ready.$RANK"; exec sleep 600"#;
            // Without job control, as in a script, no shell restores the terminal.
            shell.line(&format!(r#"sh -c '"$DTRAIN" launch --nproc 1 -- sh -c '\''{script}'\''; {COOKED}'"#));
            scene.wait_for_ready(1);
            let launcher = scene.launcher();
            kill(
                match victim {
                    "worker" => scene.workers()[0],
                    "launcher" => launcher[0],
                    _ => parent_of(launcher[0]),
                },
                signal,
            );
            shell.expect("cooked");
            wait_until("nothing to be left", || scene.workers().is_empty() && scene.launcher().is_empty());
        }
    }
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_program_that_sets_the_modes_of_its_standard_output_reads_keys() {
    let (scene, mut shell) = Shell::start();
    let script =
        r#"stty -icanon -echo <&1; : > "ready.$RANK"; key=$(dd bs=1 count=1 2>/dev/null); echo "got <$key>""#;
    shell.line(&format!(r#""$DTRAIN" launch --nproc 1 -- sh -c '{script}'; {COOKED}"#));
    scene.wait_for_ready(1);
    wait_until("the worker to have the terminal", || scene.workers().contains(&shell.foreground()));
    std::thread::sleep(std::time::Duration::from_millis(500));
    shell.keys(b"k");
    shell.expect("got <k>");
    shell.expect("cooked");
}

#[test]
fn a_proc_of_another_pid_namespace_does_no_harm() {
    let scene = Scene::new();
    let args = ["-Urpf", env!("CARGO_BIN_EXE_dtrain"), "launch", "--nproc", "1", "--"];
    let script = "ls /proc/self/fd | grep -c '^[4-9]$'; echo done";
    let command = scene.adapt(Command::new("unshare"), &args).into_command(&["sh", "-c", script]);
    let done = scene.start(command).wait();
    let found = if done.stderr.starts_with("unshare: ") { Err(&done.stderr) } else { Ok(()) };
    let Ok(()) = need::require(Need::Mount, found) else { return };
    assert_eq!(done.expect_code(0).stdout(), "0\ndone\n");
}

#[test]
fn a_terminal_that_goes_away_ends_a_job_that_runs_or_is_suspended() {
    for suspended in [false, true] {
        let (scene, mut shell) = Shell::start();
        shell.line(&format!(r#""$DTRAIN" launch --nproc 2 -- {COUNTS}"#));
        scene.wait_for_ready(2);
        if suspended {
            shell.keys(b"\x1a");
            shell.expect("Stopped");
        }
        drop(shell);
        wait_until("nothing to be left", || scene.alive().is_empty());
    }
}
