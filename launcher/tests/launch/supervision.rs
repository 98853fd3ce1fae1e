//! Workers that fail, linger or leave processes behind.

use crate::harness::{Scene, kill, repeats, wait_until};
use rustix::process::Signal;
use std::time::{Duration, Instant};

#[test]
fn when_one_fails_the_others_are_stopped_and_nothing_is_left() {
    let script = r#"
        sleep 600 &
        : > "$TEST_DIR/ready.$RANK"
        if [ $RANK = 2 ]; then
            until [ -e "$TEST_DIR/ready.0" ] && [ -e "$TEST_DIR/ready.1" ] && [ -e "$TEST_DIR/ready.3" ]; do sleep 0.01; done
            exit 11
        fi
        wait"#;
    let begun = Instant::now();
    let scene = Scene::new();
    let done = scene.sh(4, &["--shutdown-timeout", "600"], script);
    done.expect_code(11).expect_stderr("dtrain: rank 2 (pid ");
    assert!(begun.elapsed() < Duration::from_secs(300), "nobody had to be killed");
}

/// Rank 1 fails, and rank 0 ignores SIGTERM.
const DEAF_PEER: &str = r#"
    if [ $RANK = 0 ]; then trap '' TERM; : > "$TEST_DIR/deaf"; while :; do sleep 0.1; done; fi
    until [ -e "$TEST_DIR/deaf" ]; do sleep 0.01; done
    exit 8"#;

#[test]
fn a_peer_that_ignores_sigterm_is_killed_after_the_timeout() {
    let begun = Instant::now();
    let done = Scene::new().sh(2, &["--shutdown-timeout", "1"], DEAF_PEER);
    done.expect_code(8).expect_stderr("dtrain: killing rank 0: still running after 1 s");
    done.expect_stderr("stopped as a consequence: rank 0 (killed by SIGKILL)");
    assert!(begun.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_timeout_of_zero_kills_at_once() {
    Scene::new()
        .sh(2, &["--shutdown-timeout", "0"], DEAF_PEER)
        .expect_code(8)
        .expect_stderr("dtrain: killing rank 0");
}

#[test]
fn a_worker_may_end_early_and_well() {
    let script = r#"
        if [ $RANK = 0 ]; then exit 0; fi
        : > "$TEST_DIR/ready.1"
        until [ -e "$TEST_DIR/go" ]; do sleep 0.01; done
        echo finished"#;
    let scene = Scene::new();
    let launch = scene.start(scene.command(&["--nproc", "2", "--", "sh", "-c", script]));
    wait_until("rank 0 to be gone", || scene.path("ready.1").exists() && scene.workers().len() == 1);
    std::fs::write(scene.path("go"), "").unwrap();
    assert_eq!(launch.wait().expect_code(0).stdout(), "[rank 1] finished\n");
}

#[test]
fn grandchildren_in_the_process_group_do_not_outlive_the_run() {
    let scene = Scene::new();
    let script = r#"trap '' TERM HUP; sleep 600 & sh -c "trap '' TERM; sleep 600" & exit 0"#;
    // Harness::wait also checks that no process of the scene is left.
    scene.sh(2, &[], script).expect_code(0);
}

/// A daemon of rank 0, in a new session, that ignores all but SIGKILL. Later commands run when it exists.
const DAEMON: &str = r#"
    if [ $RANK = 0 ]; then
        setsid sh -c 'trap "" TERM HUP INT; : > "$TEST_DIR/daemon"; while :; do sleep 0.1; done' &
    fi
    until [ -e "$TEST_DIR/daemon" ]; do sleep 0.01; done
    : > "$TEST_DIR/ready.$RANK"
"#;

#[test]
fn a_daemon_that_holds_the_output_open_is_ended_with_the_run() {
    let done = Scene::new().sh(1, &[], &format!("{DAEMON} echo bye"));
    assert_eq!(done.expect_code(0).stdout(), "bye\n");
}

#[test]
fn a_launcher_that_is_killed_takes_along_everything_below_it() {
    for _ in 0..repeats(5) {
        let scene = Scene::new();
        let launch = scene.start_sh(3, &[], &format!("{DAEMON} exec sleep 600"));
        launch.signal(Signal::KILL);
        assert_eq!(launch.wait().code, None);
    }
}

#[test]
fn a_launcher_that_is_killed_behind_its_guardians_back_leaves_nothing_either() {
    for _ in 0..repeats(5) {
        let scene = Scene::new();
        let launch = scene.start_sh(3, &[], &format!("{DAEMON} exec sleep 600"));
        let launcher = scene.launcher();
        assert_eq!(launcher.len(), 1);
        kill(launcher[0], Signal::KILL);
        launch.wait().expect_code(128 + 9).expect_stderr("was killed by SIGKILL");
    }
}

#[test]
fn a_launcher_killed_in_the_middle_of_starting_leaves_nothing() {
    for delay_us in (0..repeats(8)).map(|n| (n as u64 * 4000) % 32_500) {
        let scene = Scene::new();
        let launch = scene.start(scene.command(&["--nproc", "8", "--", "sleep", "600"]));
        std::thread::sleep(Duration::from_micros(delay_us));
        launch.signal(Signal::KILL);
        launch.wait();
    }
}

#[test]
fn workers_killed_at_any_moment_stop_the_others_and_leave_nothing() {
    for n in 0..repeats(6) {
        let scene = Scene::new();
        let script = format!(r#"echo $$ > "$TEST_DIR/pid.$RANK"; {DAEMON} exec sleep 600"#);
        let launch = scene.start_sh(4, &["--max-restarts", "1"], &script);
        let worker = scene.read(&format!("pid.{}", n % 4)).trim().parse().unwrap();
        kill(worker, Signal::KILL);
        if n % 2 == 0 {
            std::thread::sleep(Duration::from_micros((n as u64 * 700) % 20_000));
        } else {
            launch.wait_for_stderr("restart 1 of 1");
        }
        launch.signal(Signal::TERM);
        launch.wait();
    }
}

/// Returns the number of ended, unreaped children of this process.
fn zombies_of(parent: u32) -> usize {
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    stats
        .filter(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(&format!(" Z {parent} "))))
        .count()
}

#[test]
fn orphans_that_end_are_reaped_while_the_run_lasts_and_workers_are_not() {
    let script = r#"
        if [ $RANK = 0 ]; then exit 0; fi
        for i in $(seq 200); do (: &); done
        : > "$TEST_DIR/ready.1"
        until [ -e "$TEST_DIR/go" ]; do sleep 0.01; done
        exit 9"#;
    let scene = Scene::new();
    let launch = scene.start(scene.command(&["--nproc", "2", "--", "sh", "-c", script]));
    wait_until("the orphans to be made", || scene.path("ready.1").exists());
    let launcher = scene.launcher()[0];
    // Only rank 0 remains: its pid must not be reused before the end.
    wait_until("the orphans to be reaped", || zombies_of(launcher) == 1);
    std::fs::write(scene.path("go"), "").unwrap();
    launch.wait().expect_code(9).expect_stderr("dtrain: rank 1 (pid ");
}

fn names_in(folder: &std::path::Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn temporary_folders_are_private_whatever_the_umask() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("tmp")).unwrap();
    let words = [
        "-c",
        r#"umask 0; exec "$@""#,
        "sh",
        env!("CARGO_BIN_EXE_dtrain"),
        "launch",
        "--nproc",
        "1",
        "--",
        "sh",
        "-c",
        r#"stat -c %a "$TMPDIR"/* "$TMPDIR"/*/* "$(dirname "$DTRAIN_HEARTBEAT_FILE")""#,
    ];
    let mut command = scene.adapt(std::process::Command::new("sh"), &words).into_command::<&str>(&[]);
    command.env("TMPDIR", scene.path("tmp"));
    let done = scene.start(command).wait();
    let modes = done.expect_code(0).stdout();
    assert!(modes.lines().count() >= 3 && modes.lines().all(|mode| mode == "700"), "{modes}");
}

#[test]
fn no_temporary_folder_is_left_whoever_is_killed() {
    for killed in ["nobody", "the guardian", "the launcher"] {
        let scene = Scene::new();
        std::fs::create_dir(scene.path("tmp")).unwrap();
        let script = r#": > "$TEST_DIR/ready.$RANK"; until [ -e "$TEST_DIR/go" ]; do sleep 0.01; done"#;
        let mut command = scene.command(&["--nproc", "1", "--", "sh", "-c", script]);
        command.env("TMPDIR", scene.path("tmp"));
        let launch = scene.start(command);
        scene.wait_for_ready(1);
        assert!(!names_in(&scene.path("tmp")).is_empty());
        match killed {
            "the guardian" => launch.signal(Signal::KILL),
            "the launcher" => kill(scene.launcher()[0], Signal::KILL),
            _ => std::fs::write(scene.path("go"), "").unwrap(),
        }
        launch.wait();
        assert_eq!(names_in(&scene.path("tmp")), Vec::<&str>::new(), "{killed} was killed");
    }
}

#[test]
fn a_tmpdir_that_does_not_exist_is_warned_of_and_stops_nothing() {
    let scene = Scene::new();
    let mut command = scene.command(&["--nproc", "1", "--", "echo", "hello"]);
    command.env("TMPDIR", scene.path("missing"));
    let done = scene.start(command).wait();
    assert_eq!(done.expect_code(0).stdout(), "hello\n");
    done.expect_stderr("dtrain: warning: temporary folder ").expect_stderr("set TMPDIR");
}
