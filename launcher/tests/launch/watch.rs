//! `dtrain runs watch` as a whole screen, on a terminal with a shell.

use crate::harness::{Scene, kill};
use crate::pty::Shell;
use rustix::process::Signal;

const ENTERED: &str = "\u{1b}[?1049h";
const LEFT: &str = "\u{1b}[?1049l";

fn write(scene: &Scene, path: &str, text: &str) {
    std::fs::write(scene.path(path), text).unwrap();
}

/// Makes a training that ended, and a shell in the folder of `runs`.
fn start() -> (Scene, Shell) {
    let (scene, shell) = Shell::start();
    std::fs::create_dir_all(scene.path("runs/flowers/logs/attempt_0/rank_0")).unwrap();
    write(&scene, "runs/flowers/.lock", "");
    write(&scene, "runs/flowers/result.json", "{\"exit_code\": 0, \"wall_s\": 5.0}");
    write(
        &scene,
        "runs/flowers/metrics.jsonl",
        "{\"step\": 1, \"epoch\": 1, \"loss\": 0.5, \"elapsed_s\": 1.0}\n",
    );
    write(&scene, "runs/flowers/logs/attempt_0/rank_0/stderr.log", "thelog\n");
    (scene, shell)
}

fn watch(shell: &mut Shell) {
    shell.line(
        "stty -g > before; TERM=xterm $DTRAIN runs watch --interval 0.1; echo \"code=$?\"; stty -g > after",
    );
    shell.expect(ENTERED);
    shell.expect("succeeded");
    shell.expect("thelog");
}

#[track_caller]
fn assert_restored(scene: &Scene, shell: &mut Shell, code: i32) {
    shell.expect(LEFT);
    shell.expect(&format!("code={code}"));
    shell.line("echo do''ne");
    shell.expect("done");
    assert_eq!(scene.read("before"), scene.read("after"));
}

#[test]
fn keys_signals_and_suspension_leave_the_terminal_as_it_was() {
    let (scene, mut shell) = start();
    watch(&mut shell);
    shell.keys(b"?");
    shell.expect("Keys");
    shell.keys(b"xq");
    assert_restored(&scene, &mut shell, 0);

    watch(&mut shell);
    shell.keys(b"\x1a");
    shell.expect(LEFT);
    shell.expect("Stopped");
    shell.line("fg");
    shell.expect(ENTERED);
    shell.expect("thelog");
    shell.keys(b"\x03");
    shell.expect(LEFT);

    watch(&mut shell);
    kill(shell.foreground(), Signal::TERM);
    assert_restored(&scene, &mut shell, 143);
}

#[test]
fn a_removed_run_and_a_lost_folder_do_not_end_it() {
    let (scene, mut shell) = start();
    watch(&mut shell);
    std::fs::remove_dir_all(scene.path("runs/flowers")).unwrap();
    shell.expect("appears");
    std::fs::remove_dir_all(scene.path("runs")).unwrap();
    shell.expect("again:");
    shell.keys(b"q");
    assert_restored(&scene, &mut shell, 0);
}

#[test]
fn a_folder_that_is_not_there_is_an_error_without_a_screen() {
    let (_scene, mut shell) = Shell::start();
    shell.line("TERM=xterm $DTRAIN runs watch absent; echo \"code=$?\"");
    shell.expect("cannot list absent; name the folder that holds your run directories");
    shell.expect("code=2");
}
