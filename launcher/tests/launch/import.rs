//! `dtrain import`, with scripts as Python, and with a Python whose PyTorch is missing or too old.

use crate::harness::{Finished, Scene, executable, wait_until, words};
use crate::pty::Pty;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::process::Command;

const OUT: &str = "model.pt2";

/// Builds `dtrain import ARGS` with this script as Python.
fn command(scene: &Scene, args: &[&str], python: &str) -> Command {
    let file = executable(scene, "python", &format!("#!/bin/sh\n{python}\n"));
    let args = [&["import"], args].concat();
    let mut command = scene.adapt(Command::new(env!("CARGO_BIN_EXE_dtrain")), &[]).into_command(&args);
    command.env("PYTHON_EXEC", file);
    command
}

#[track_caller]
fn run(scene: &Scene, args: &[&str], python: &str) -> Finished {
    scene.start(command(scene, args, python)).wait()
}

/// Runs python3 with a package `torch` of this content.
#[track_caller]
fn with_torch(torch: &str) -> Finished {
    let scene = Scene::new();
    fs::write(scene.path("torch.py"), torch).unwrap();
    let mut command = command(&scene, &["a.py:make", "-o", OUT], r#"exec python3 "$@""#);
    command.env("PYTHONPATH", scene.path(""));
    let done = scene.start(command).wait();
    assert!(!scene.path(OUT).exists());
    done
}

#[test]
fn python_gets_the_script_and_the_request() {
    let scene = Scene::new();
    let args = words(
        "hf:org/model --output model.pt2 --classes=7 --image-size=32x48 --inputs=x=3x32x48,age=int64 \
         --head=causal-lm --seed=3 --arg=drop_path_rate=0.1 --arg=act=gelu --check-with=layers=2 --pretrained",
    );
    let python = r#"printf %s "$1" > "$TEST_DIR/flag"; printf %s "$2" > "$TEST_DIR/command"; cat > "$TEST_DIR/script"
printf %s "$3" > "$TEST_DIR/request"; echo summary; echo progress >&2"#;
    let done = run(&scene, &args, python);
    assert_eq!(done.expect_code(0).stdout(), "summary\n");
    assert_eq!(done.stderr, "progress\n");
    assert_eq!(scene.read("flag"), "-c");
    assert!(scene.read("script").ends_with("\nmain()\n"));
    // What `ps` shows stays one line.
    assert!(scene.read("command").len() < 100 && !scene.read("command").contains('\n'));
    let mut request: Value = serde_json::from_str(&scene.read("request")).unwrap();
    let inputs = json!([
        { "name": "x", "dtype": "float32", "shape": [3, 32, 48] },
        { "name": "age", "dtype": "int64", "shape": [] },
    ]);
    let expected = json!({
        "source": "hf:org/model", "output": OUT, "classes": 7, "image_size": [32, 48], "channels": null,
        "dynamic": [], "inputs": inputs, "head": "causal-lm", "args": { "drop_path_rate": 0.1, "act": "gelu" },
        "library": [], "pretrained": true, "seed": 3, "check_with": { "layers": 2 }, "traceback": false,
        "weights": null, "role": null,
    });
    let worker = request.as_object_mut().unwrap().remove("worker").unwrap();
    assert!(worker.as_str().unwrap().ends_with("dtrain-worker"), "{worker}");
    assert_eq!(request, expected);
}

#[test]
fn one_number_for_the_image_is_a_number() {
    let scene = Scene::new();
    let args = ["a.py:make", "-o", OUT, "--image-size", "32"];
    run(&scene, &args, r#"printf %s "$3" > "$TEST_DIR/request""#).expect_code(0);
    let request: Value = serde_json::from_str(&scene.read("request")).unwrap();
    assert_eq!(request["image_size"], json!(32));
}

#[test]
fn wrong_usage_ends_before_python_starts() {
    let scene = Scene::new();
    fs::write(scene.path("old.pt2"), "old").unwrap();
    for (args, message) in [
        (&["a.py", "-o", OUT][..], "such as a.py:make_model"),
        (&["resnet18", "-o", OUT], "use timm:NAME"),
        (&["timm:a"], "--output <FILE.pt2>"),
        (&["timm:a", "-o", "model.pth"], "must end in .pt2"),
        (&["timm:a", "-o", "old.pt2"], "old.pt2 already exists; --force overwrites it"),
        (&["timm:a", "-o", "no/such/m.pt2"], "the folder no/such of no/such/m.pt2 does not exist"),
        (&["timm:a", "-o", OUT, "--classes", "0"], "--classes"),
        (&["timm:a", "-o", OUT, "--image-size", "3x4x5"], "--image-size"),
        (&["timm:a", "-o", OUT, "--inputs", "x"], "--inputs"),
        (&["timm:a", "-o", OUT, "--head", "tail"], "--head"),
        (&["timm:a", "-o", OUT, "--arg", "rate"], "use NAME=VALUE, such as drop_path_rate=0.1"),
        (&["timm:a", "-o", OUT, "--arg", "a=1", "--arg", "a=2"], "--arg a is given twice"),
        (&["timm:a", "-o", OUT, "--head", "none"], "--head applies to hf: models only"),
    ] {
        run(&scene, args, r#"touch "$TEST_DIR/started""#).expect_code(2).expect_stderr(message);
        assert!(!scene.path("started").exists(), "{args:?}");
    }
    run(&scene, &["timm:a", "-o", "old.pt2", "--force"], r#"touch "$TEST_DIR/started""#).expect_code(0);
    assert!(scene.path("started").exists());
}

#[test]
fn a_failure_of_python_is_one_error_and_leaves_no_file() {
    let scene = Scene::new();
    let python = |end: &str| format!("touch \"$TEST_DIR/{OUT}.partial\"\n{end}");
    let args = ["timm:a", "-o", OUT];
    let done = run(&scene, &args, &python("echo 'dtrain: error: why' >&2; exit 2"));
    assert_eq!(done.expect_code(2).stderr, "dtrain: error: why\n");
    for (end, message) in [
        ("exit 1", "exited with code 1 without a message"),
        ("kill -KILL $$", "was killed by SIGKILL; if this was SIGKILL, the memory may be too small"),
    ] {
        let done = run(&scene, &args, &python(end));
        done.expect_code(2).expect_stderr(message);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    assert!(!scene.path("model.pt2.partial").exists());
    let mut without = command(&scene, &args, "");
    without.env("PYTHON_EXEC", "/no/python");
    scene.start(without).wait().expect_code(2).expect_stderr("PYTHON_EXEC is set wrongly");
}

#[test]
fn a_stop_ends_python_and_leaves_no_file() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let scene = Scene::new();
        let python = format!("touch \"$TEST_DIR/{OUT}.partial\"; while :; do sleep 0.1; done");
        let launch = scene.start(command(&scene, &["timm:a", "-o", OUT], &python));
        wait_until("the unfinished file", || scene.path("model.pt2.partial").exists());
        launch.signal(signal);
        let done = launch.wait();
        done.expect_code(code).expect_stderr("model.pt2 was not written");
        assert!(!scene.path("model.pt2.partial").exists());
    }
}

#[test]
fn a_missing_or_old_pytorch_is_an_error_with_a_remedy() {
    for (torch, message) in [
        ("raise ModuleNotFoundError('No module', name='torch')", "has no PyTorch; install it with `"),
        ("raise ImportError('libfoo.so: cannot open')", "libfoo.so: cannot open; repair the installation"),
        ("__version__ = '2.5.1+cpu'", "PyTorch 2.5.1+cpu is too old: dtrain import needs 2.6 or newer"),
    ] {
        let done = with_torch(torch);
        done.expect_code(2).expect_stderr(message);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
}

#[test]
fn a_step_of_an_import_shows_its_seconds_and_one_line_in_the_end() {
    let script = concat!(
        include_str!("../../src/import/python/base.py"),
        "\nwith step('waiting'):\n    time.sleep(2.5)\nwith step('short'):\n    pass\n"
    );
    let python = || {
        let mut command = Command::new("python3");
        command.args(["-c", script]);
        command
    };
    let (pty, mut command) = (Pty::new(80), python());
    pty.attach(&mut command);
    let (shown, code) = pty.run(command);
    let shown = String::from_utf8(shown).unwrap();
    // Each line replaces the one before; the last one stays.
    let mut lines = shown.split("\r\x1b[K").skip(1).collect::<Vec<_>>();
    let last = lines.pop().unwrap();
    assert!(code == Some(0) && last.ends_with(" s\r\n") && lines.len() > 1, "{shown:?}");
    assert!(
        lines.iter().all(|line| line.starts_with("dtrain: waiting: ") && !line.contains('\n')),
        "{shown:?}"
    );
    let piped = String::from_utf8(python().output().unwrap().stderr).unwrap();
    assert!(piped.starts_with("dtrain: waiting: ") && piped.lines().count() == 1, "{piped:?}");
}
