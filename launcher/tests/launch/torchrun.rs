//! torchrun's command line: the ways to name a program, its flags and their environment variables.

use crate::harness::{Finished, Scene, executable, words};
use dtrain_test_kit::ranks::free_port;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// A script as Python: writes its name and its arguments, each in brackets.
const INTERPRETER: &str = "#!/bin/sh\n{ printf '[%s]' \"$0\" \"$@\"; echo; } > \"$TEST_DIR/.line.$RANK\"\n";
/// Writes the variables that the flags change.
const WRITE: &str = r#"echo "$ROLE_NAME $LOCAL_RANK $MASTER_ADDR $MASTER_PORT $TORCHELASTIC_RUN_ID" > "$TEST_DIR/.vars.$RANK""#;

/// Runs the launcher with these variables set.
#[track_caller]
fn with<S: AsRef<OsStr>>(scene: &Scene, variables: &[(&str, &str)], args: &[S]) -> Finished {
    let mut command = scene.command(args);
    for name in ["PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    scene.start(command).wait()
}

/// Runs the launcher and expects an error with `message`, without a started worker.
#[track_caller]
fn refused(variables: &[(&str, &str)], args: &[&str], message: &str) {
    let scene = Scene::new();
    with(&scene, variables, args).expect_code(2).expect_stderr(message);
    scene.expect_nothing_written();
}

#[test]
fn a_script_and_a_module_are_run_by_the_python_of_the_environment() {
    let scene = Scene::new();
    executable(&scene, ".venv/bin/python3", INTERPRETER);
    fs::write(scene.path(".t.py"), "").unwrap();
    let venv = scene.path(".venv");
    let python = venv.join("bin/python3");
    let run = |line: &[&str]| {
        with(&scene, &[("VIRTUAL_ENV", venv.to_str().unwrap())], line).expect_code(0);
        let rank0 = scene.read(".line.0");
        assert_eq!(rank0, scene.read(".line.1"));
        rank0.trim_end().replacen(python.to_str().unwrap(), "python", 1)
    };
    let script = run(&["--nproc", "2", ".t.py", "--nproc", "7", "-m", "--", "a b"]);
    assert_eq!(script, "[python][-u][.t.py][--nproc][7][-m][--][a b]");
    let module = run(&["--nproc_per_node", "2", "-m", "pkg.train", "--help"]);
    assert_eq!(module, "[python][-u][-m][pkg.train][--help]");
}

#[test]
fn a_real_python_gets_its_arguments_and_writes_unbuffered() {
    let scene = Scene::new();
    let script = "import os, sys\nsys.stdout.write(' '.join([os.environ['RANK'], str(sys.stdout.write_through)] + sys.argv[1:]) + '\\n')\n";
    fs::write(scene.path("t.py"), script).unwrap();
    for line in [
        &["t.py", "--set", "x"][..],
        &["-m", "t", "--set", "x"],
        &["--", "python3", "t.py", "--set", "x"],
        &["--", "sh", "-c", "python3 t.py --set x"],
    ] {
        let args = [&["--nproc", "1"], line].concat();
        assert_eq!(scene.launch(&args).expect_code(0).stdout(), "0 True --set x\n");
    }
    assert_eq!(scene.launch(&["--nproc", "2", "-m", "no.such.module"]).code, Some(1));
}

#[test]
fn no_python_executes_the_program_itself() {
    let scene = Scene::new();
    executable(&scene, ".tool.py", INTERPRETER);
    scene.launch(&["--nproc", "1", "--no-python", "./.tool.py", "--role", "x"]).expect_code(0);
    assert_eq!(scene.read(".line.0"), "[./.tool.py][--role][x]\n");
    refused(&[], &["--no-python", "-m", "x"], "-m and --no-python contradict each other");
}

#[test]
fn the_flags_reach_the_workers() {
    let port = free_port().to_string();
    let vars = |flags: &[&str]| {
        let scene = Scene::new();
        scene.sh(2, flags, WRITE).expect_code(0);
        assert_eq!(scene.read(".vars.0").replacen(" 0 ", " 1 ", 1).len(), scene.read(".vars.1").len());
        scene.read(".vars.1").trim_end().to_owned()
    };
    let flags =
        ["--role", "trainer", "--master-addr", "localhost", "--master-port", &port, "--rdzv-id", "job 7"];
    assert_eq!(vars(&flags), format!("trainer 1 localhost {port} job 7"));
    let endpoint = format!("127.0.0.1:{port}");
    let all = format!(
        "--nnodes=1:1 --node_rank=0 --rdzv_backend=c10d --rdzv_conf=is_host=1 --rdzv_id=a --rdzv_endpoint {endpoint}"
    );
    assert_eq!(vars(&words(&all)), format!("default 1 127.0.0.1 {port} a"));
    let virtual_ranks =
        vars(&["--virtual-local-rank", "--standalone", "--rdzv-id=b", "--local-addr=127.0.0.1"]);
    assert!(virtual_ranks.starts_with("default 0 127.0.0.1 "), "{virtual_ranks}");
    assert!(virtual_ranks.ends_with(" b"), "{virtual_ranks}");
}

#[test]
fn a_port_that_is_taken_is_named_before_anything_is_started() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let says = format!("port {port} is taken by another program");
    refused(&[], &["--master-port", &port, "--", "true"], &says);
    refused(&[], &["--master-port", &port, "demo"], &says);
    refused(&[], &["--rdzv-endpoint", &format!("localhost:{port}"), "--", "true"], &says);
    let twin = [("PET_MASTER_PORT", port.as_str())];
    refused(&twin, &["--", "true"], "(set in the environment: PET_MASTER_PORT)");
}

#[test]
fn flags_and_abbreviations_of_torchrun_are_accepted() {
    let scene = Scene::new();
    let flags = words(
        "--nproc_per=2 --start-method=fork --event-log=console --logs-specs=x --run-path --standalone \
         --rdzv-endpoint=192.0.2.1:1 --master-addr=192.0.2.1 --local-addr=127.0.0.1 \
         --rdzv-conf=is_host=0,store_type=file,own=1",
    );
    fs::write(scene.path("t.py"), "import os\nprint(os.environ['RANK'])\n").unwrap();
    // With --standalone, --master-addr has effect and the endpoint has not, as with torchrun's static stores.
    let refused = scene.launch(&[&flags[..], &["t.py"]].concat());
    refused.expect_code(2).expect_stderr("--master-addr 192.0.2.1 is not an address of this machine");
    let flags: Vec<_> = flags.into_iter().filter(|flag| !flag.starts_with("--master")).collect();
    let done = scene.launch(&[&flags[..], &["t.py"]].concat());
    done.expect_code(0)
        .expect_stderr("dtrain: --rdzv-endpoint is ignored: --standalone overrides it\n")
        .expect_stderr("dtrain: --rdzv-conf is_host=0, store_type=file, own=1 is ignored")
        .expect_stderr("dtrain: --start-method is ignored")
        .expect_stderr("dtrain: --event-log-handler is ignored")
        .expect_stderr("dtrain: --logs-specs is ignored")
        .expect_stderr("dtrain: --run-path is ignored");
    assert_eq!(done.stdout().lines().count(), 2);
}

#[test]
fn python_runs_whatever_is_pythons() {
    let scene = Scene::new();
    let print = "import sys\nprint('ran', *sys.argv[1:])\n";
    fs::write(scene.path("tool"), format!("#!/usr/bin/env python3\n{print}")).unwrap();
    fs::create_dir(scene.path("app")).unwrap();
    fs::write(scene.path("app/__main__.py"), print).unwrap();
    let mut zip = Command::new("python3");
    zip.args(["-m", "zipapp", "app"]).current_dir(scene.path("."));
    assert!(zip.status().unwrap().success());
    for name in ["tool", "./tool", "app", "app.pyz"] {
        let done = scene.launch(&["--nproc", "1", name, "--set", "x"]);
        assert_eq!(done.expect_code(0).stdout(), "ran --set x\n", "{name}");
    }
    fs::write(scene.path("plain"), print).unwrap();
    for (name, says) in [
        ("plain", "`dtrain launch -- python3 plain`"),
        ("no-such", "No program in PATH has this name"),
        ("no-such.py", "the script `no-such.py` does not exist"),
    ] {
        scene.launch(&[name]).expect_code(2).expect_stderr(says);
    }
}

#[test]
fn twins_in_the_environment_stand_for_flags() {
    let scene = Scene::new();
    let twins = [
        ("PET_NPROC_PER_NODE", "2"),
        ("PET_ROLE", "trainer"),
        ("PET_RDZV_ID", "from-twin"),
        ("PET_VIRTUAL_LOCAL_RANK", "1"),
        ("PET_STANDALONE", "0"),
        ("PET_SHUTDOWN_TIMEOUT", ""),
    ];
    let args = ["--rdzv-id", "typed", "--", "sh", "-c", WRITE];
    with(&scene, &twins, &args).expect_code(0);
    let vars = scene.read(".vars.1");
    assert!(vars.starts_with("trainer 0 ") && vars.ends_with(" typed\n"), "{vars}");
    let both = [("PET_NPROC", "1"), ("PET_NPROC_PER_NODE", "2")];
    refused(&both, &["--", "true"], "PET_NPROC=1 and PET_NPROC_PER_NODE=2 set the same flag");
    for (variable, value, why) in [
        ("PET_STANDALONE", "perhaps", "is `perhaps`: "),
        ("PET_NUMA_BINDING", "everywhere", "core-complex"),
        ("PET_NNODES", "x", "MIN:MAX"),
    ] {
        refused(&[(variable, value)], &["--", "true"], variable);
        refused(&[(variable, value)], &["--", "true"], why);
        // If the command line alone is wrong, the variable is not named.
        refused(&[(variable, value)], &["--no-such", "--", "true"], "unexpected argument '--no-such'");
    }
    with(&scene, &[("PET_NPROC", "nonsense")], &["--nproc", "1", "--", "true"]).expect_code(0);
    with(&scene, &[("PET_MODULE", "1"), ("PET_NPROC", "1")], &["http.no_such", "--role", "x"])
        .expect_stderr("No module named");
    refused(&[("PET_SET", "train.epochs=many")], &["demo", "--set", "optim.lr=1e-3"], "train.epochs");
    refused(
        &[("PET_NPROC_PER_NODE", "many")],
        &["--", "true"],
        "the environment variable PET_NPROC_PER_NODE is `many`: give a whole number of at least 1",
    );
    refused(&[("PET_NO_PYTHON", "1")], &["-m", "x"], "(set in the environment: PET_NO_PYTHON)");
}

#[test]
fn a_signal_that_is_not_handled_ends_the_launcher_and_its_workers() {
    let wait = r#": > "$TEST_DIR/ready.$RANK"; exec sleep 600"#;
    let scene = Scene::new();
    let mut launch = scene.start_sh(2, &["--signals-to-handle", "SIGTERM,int"], wait);
    launch.signal(Signal::USR1);
    let status = launch.child.wait().unwrap();
    assert_eq!(status.signal(), Some(Signal::USR1.as_raw()));
    launch.wait();

    let scene = Scene::new();
    let launch = scene.start_sh(1, &["--signals-to-handle", "SIGTERM,int"], wait);
    launch.signal(Signal::TERM);
    launch.wait().expect_code(143).expect_stderr("received SIGTERM");
    refused(&[], &["--signals-to-handle", "TERM,KILL", "--", "true"], "\"KILL\" is not among TERM, INT");
}

/// Runs two workers, and returns the cores that the kernel allows for each.
fn bound(mode: &str) -> (Scene, Finished, [String; 2]) {
    let scene = Scene::new();
    let script = r#"grep Cpus_allowed_list /proc/self/status > "$TEST_DIR/.cores.$RANK""#;
    let done = scene.sh(2, &["--numa-binding", mode], script);
    done.expect_code(0);
    let cores = [0, 1].map(|rank| {
        let line = scene.read(&format!(".cores.{rank}"));
        line.split_whitespace().last().unwrap().to_owned()
    });
    (scene, done, cores)
}

#[test]
fn workers_are_bound_to_the_cores_that_the_launcher_names() {
    for mode in ["node", "exclusive"] {
        if mode == "exclusive" && std::thread::available_parallelism().unwrap().get() < 2 {
            eprintln!("left out: this machine has no two cores to share out");
            continue;
        }
        let (_scene, done, [first, second]) = bound(mode);
        done.expect_stderr(&format!(
            "dtrain: --numa-binding {mode}: CPU cores: rank 0: {first}; rank 1: {second}\n"
        ));
        if mode == "exclusive" {
            assert_ne!(first, second);
        }
    }
    refused(&[], &["--numa-binding", "everywhere", "--", "true"], "core-complex");
}
