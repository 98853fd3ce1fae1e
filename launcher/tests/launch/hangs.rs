//! Workers that go on running and do nothing.

use crate::harness::Scene;
use dtrain_test_kit::need::{self, Need};

/// Beats for a while, and then only rank 1 stops; rank 0 waits for it as ranks do.
const STUCK: &str = r#"
    for n in 1 2 3 4 5 6; do : > "$DTRAIN_HEARTBEAT_FILE"; touch "$DTRAIN_HEARTBEAT_FILE"; sleep 0.6; done
    if [ $RANK = 0 ]; then for n in 1 2 3; do touch "$DTRAIN_HEARTBEAT_FILE"; sleep 0.6; done; fi
    exec sleep 600"#;

#[test]
fn workers_that_stop_beating_are_found_and_where_they_are_is_kept() {
    let scene = Scene::new();
    let done = scene.sh(2, &["--hang-timeout", "3", "--run-dir", "out"], STUCK);
    done.expect_code(4)
        .says("dtrain: no progress: nothing was heard of rank 1 for ")
        .says("dtrain: where rank 0 is: out/logs/attempt_0/rank_0/stacks.txt")
        .says("killed by SIGABRT");
    for rank in 0..2 {
        let stacks = scene.read(&format!("out/logs/attempt_0/rank_{rank}/stacks.txt"));
        assert!(stacks.contains("sleep: S (sleeping)"), "{stacks}");
    }
    let result: serde_json::Value = serde_json::from_str(&scene.read("out/result.json")).unwrap();
    assert_eq!(result["failure"]["rank"], 1);
    assert!(
        result["reason"]
            .as_str()
            .unwrap()
            .starts_with("no progress, rank 1"),
        "{result}"
    );
}

#[test]
fn a_hang_is_restarted_like_a_failure() {
    let scene = Scene::new();
    let script = format!("[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; {STUCK}");
    scene
        .sh(2, &["--hang-timeout", "2", "--max-restarts", "1"], &script)
        .expect_code(0)
        .says("dtrain: where rank 1 is:\n    threads of process ")
        .says("restarting all 2 workers (restart 1 of 1)");
}

#[test]
fn a_stopped_worker_is_a_hang_too() {
    let script = r#"
        for n in 1 2 3 4 5 6; do touch "$DTRAIN_HEARTBEAT_FILE"; sleep 0.6; done
        kill -STOP $$"#;
    Scene::new()
        .sh(1, &["--hang-timeout", "2", "--shutdown-timeout", "1"], script)
        .expect_code(4)
        .says("T (stopped)")
        .says("dtrain: killing rank 0: still running after 1 s");
}

#[test]
fn who_never_beats_or_is_not_watched_is_left_alone() {
    Scene::new()
        .sh(1, &["--hang-timeout", "1"], "sleep 4")
        .expect_code(0);
    let beats = r#"for n in 1 2 3 4 5 6; do touch "$DTRAIN_HEARTBEAT_FILE"; sleep 0.6; done; sleep 4"#;
    Scene::new().sh(1, &["--hang-timeout", "0"], beats).expect_code(0);
}

#[test]
fn python_says_where_every_thread_is() {
    if !std::process::Command::new("python3")
        .arg("--version")
        .status()
        .is_ok_and(|status| status.success())
    {
        return need::skip(Need::Python, "there is no python3");
    }
    let scene = Scene::new();
    let program = "import os, pathlib, time\n\
                   def stuck_here():\n    time.sleep(600)\n\
                   beat = pathlib.Path(os.environ['DTRAIN_HEARTBEAT_FILE'])\n\
                   for _ in range(6):\n    beat.touch()\n    time.sleep(0.6)\n\
                   stuck_here()\n";
    std::fs::write(scene.path("t.py"), program).unwrap();
    scene
        .launch(&["--nproc", "1", "--hang-timeout", "2", "--", "python3", "t.py"])
        .expect_code(4)
        .says("in stuck_here");
}
