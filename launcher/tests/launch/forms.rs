//! Programs that a launch starts without `--`: commands, executable files, wrappers of pip.

use crate::harness::{Scene, executable};
use std::fs;
use std::process::Command;

/// Words that are flags of the launcher too: after the program they are the program's.
const OWN: [&str; 4] = ["--nnodes", "3", "--run-dir", "x"];

/// Returns the path of the Python that tests find.
fn python() -> String {
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

#[test]
fn commands_and_executable_files_start_with_all_their_words() {
    let scene = Scene::new();
    executable(&scene, "run.sh", "#!/bin/sh\necho \"$0\" \"$@\"\n");
    executable(&scene, "t.py", "import sys\nprint(*sys.argv)\n");
    for (program, expected) in [
        (&["./run.sh"][..], "./run.sh"),
        (&["run.sh"], "./run.sh"),
        (&["bash", "run.sh"], "run.sh"),
        (&["--no-python", "./run.sh"], "./run.sh"),
        (&["sh", "-c", "echo sh \"$@\"", "-"], "sh"),
        (&["python3", "t.py"], "t.py"),
        (&["t.py"], "t.py"),
    ] {
        let line = [&["--nproc", "1"][..], program, &OWN].concat();
        let done = scene.launch(&line);
        assert_eq!(done.expect_code(0).stdout(), format!("{expected} {}\n", OWN.join(" ")), "{program:?}");
    }
    let module =
        scene.launch(&["--nproc", "1", "python3", "-m", "t", "--nnodes", "3"]).expect_code(0).stdout();
    assert!(module.ends_with("t.py --nnodes 3\n"), "{module}");
}

#[test]
fn wrappers_of_pip_run_in_python() {
    let scene = Scene::new();
    let (print, python) = ("import sys\nprint('ran', *sys.argv[1:])\n", python());
    for (name, command) in
        [("pip", format!("\"{python}\"")), ("bare", python.clone()), ("uv", format!("'{python}'"))]
    {
        executable(&scene, name, &format!("#!/bin/sh\n'''exec' {command} \"$0\" \"$@\"\n' '''\n{print}"));
        for path in [name, &format!("./{name}")] {
            let done = scene.launch(&[&["--nproc", "1", path][..], &OWN].concat());
            assert_eq!(done.expect_code(0).stdout(), format!("ran {}\n", OWN.join(" ")), "{path}");
        }
    }
    // A relocatable environment of uv names its Python by its own place.
    let relocatable = r#""$(dirname -- "$(realpath -- "$0")")"/'python3'"#;
    executable(&scene, "moved/python3", &format!("#!/bin/sh\necho \"its own $0\"\nexec {python} \"$@\"\n"));
    executable(
        &scene,
        "moved/tool",
        &format!("#!/bin/sh\n'''exec' {relocatable} \"$0\" \"$@\"\n' '''\n{print}"),
    );
    let done = scene.launch(&["--nproc", "1", "moved/tool", "a"]);
    let own = scene.path("moved/python3");
    assert_eq!(done.expect_code(0).stdout(), format!("its own {}\nran a\n", own.display()));
    // A command that is installed in an environment runs in that, whatever environment is active.
    executable(&scene, "bin/python3", &format!("#!/bin/sh\necho \"its own $0\"\nexec {python} \"$@\"\n"));
    let own = scene.path("bin/python3");
    executable(&scene, "bin/tool", &format!("#!{}\n{print}", own.display()));
    let done = scene.launch(&["--nproc", "1", "bin/tool", "a"]);
    assert_eq!(done.expect_code(0).stdout(), format!("its own {}\nran a\n", own.display()));
}

#[test]
fn a_recipe_is_not_hidden_by_a_program_in_path_but_by_a_file() {
    let scene = Scene::new();
    executable(&scene, "bin/demo", "#!/bin/sh\necho a program\n");
    let mut command = scene.command(&["demo", "--set", "nonsense"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", scene.path("bin").display()));
    scene.start(command).wait().expect_code(2).expect_stderr("nonsense");
    executable(&scene, "demo", "#!/bin/sh\necho a file \"$@\"\n");
    assert_eq!(
        scene.launch(&["--nproc", "1", "demo", "--set", "x"]).expect_code(0).stdout(),
        "a file --set x\n"
    );
}

#[test]
fn a_recipe_in_a_pipe_is_read_once() {
    let scene = Scene::new();
    let script = r#"exec "$0" launch <(echo 'task = "x"') --nproc 2"#;
    let line = ["-c", script, env!("CARGO_BIN_EXE_dtrain")];
    let done = scene.start(scene.adapt(Command::new("bash"), &line).into_command::<&str>(&[])).wait();
    done.expect_code(2).expect_stderr("expected one of \"classify\"");
}

#[test]
fn what_cannot_start_is_told_with_the_line_that_works() {
    let scene = Scene::new();
    fs::write(scene.path(".plain"), "echo \"$@\"\n").unwrap();
    fs::write(scene.path(".t.py"), "import sys\nprint(*sys.argv[1:])\n").unwrap();
    fs::write(scene.path(".run"), "#!/bin/sh\n").unwrap();
    for (line, says) in [
        (
            &[".plain", "--nnodes", "3", "a b"][..],
            "a shell script with `dtrain launch --nproc 1 -- bash .plain --nnodes 3 'a b'`",
        ),
        (&["--", ".t.py", "--lr", "1"], "start it with `dtrain launch --nproc 1 .t.py --lr 1`"),
        (&["--no-python", ".t.py", "x"], "start it with `dtrain launch --nproc 1 .t.py x`"),
        (&["-m", ".t.py", "x"], "leave -m out for a script: `dtrain launch --nproc 1 .t.py x`"),
        (&[".run"], "program `./.run` is not executable; run `chmod +x ./.run`"),
        (&["no-such", "--nnodes", "3"], "No program in PATH has this name"),
        (&["./no-such", "--nnodes", "3"], "./no-such: there is no such file"),
    ] {
        let done = scene.launch(&[&["--nproc", "1"][..], line].concat());
        done.expect_code(2).expect_stderr(says);
        assert!(!done.stderr.contains("where do the nodes meet"), "{}", done.stderr);
    }
    scene.expect_nothing_written();
    let shown = ["--nproc", "1", "--", "bash", ".plain", "--nnodes", "3", "a b"];
    assert_eq!(scene.launch(&shown).expect_code(0).stdout(), "--nnodes 3 a b\n");
}

#[test]
fn auto_that_is_written_starts_a_program_on_every_core() {
    let scene = Scene::new();
    let cores = std::thread::available_parallelism().unwrap().get();
    let script = ["--gpu-ids", "none", "--", "sh", "-c", "echo a"];
    let count = |variable: Option<&str>, flags: &[&str]| {
        let mut command = scene.command(&[flags, &script].concat());
        command.envs(variable.map(|value| ("PET_NPROC_PER_NODE", value)));
        scene.start(command).wait().expect_code(0).stdout().lines().count()
    };
    assert_eq!(count(None, &["--nproc-per-node", "auto"]), cores);
    assert_eq!(count(Some("auto"), &[]), cores);
    assert_eq!(count(None, &[]), 1);
}
