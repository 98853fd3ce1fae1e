//! Ctrl-C and crashes during set-up: nothing incomplete that a later set-up trusts, and no process left.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use crate::machine::{Machine, wait_for};

fn kill(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

/// Starts a set-up that has torch and hangs in the second package.
fn start_hanging(machine: &Machine) -> (Child, String) {
    let setup = machine.xtask(&["setup", "--cpu"]).env("FAKE_PIP", "hang:nvidia-cuda-cupti").spawn().unwrap();
    let pip = machine.hanging_pip();
    assert!(!machine.libtorch().exists());
    (setup, pip)
}

fn expect_continuation(machine: &Machine) {
    machine.fetched();
    machine.run(&["setup", "--cpu"], &[]).ok();
    assert_eq!(machine.fetched(), ["nvidia-cuda-cupti", "nvidia-cuda-runtime"]);
    assert!(!machine.staging().exists());
}

#[test]
fn a_signal_stops_pip_and_cleans_up() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let machine = Machine::new();
        let (setup, pip) = start_hanging(&machine);
        kill(signal, &setup.id().to_string());
        let output = setup.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.lines().last().unwrap().starts_with("error: stopped by SIG"), "{stderr}");
        assert!(!Path::new("/proc").join(&pip).exists());
        assert!(!machine.libtorch().exists());
        let left: Vec<_> =
            fs::read_dir(machine.staging()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["tree"]);
        expect_continuation(&machine);
    }
}

#[test]
fn a_crash_leaves_no_trusted_package() {
    let machine = Machine::new();
    let (mut setup, pip) = start_hanging(&machine);
    setup.kill().unwrap();
    setup.wait().unwrap();
    // The abandoned pip works in a folder that the next set-up has removed: it can do no harm.
    expect_continuation(&machine);
    kill("-KILL", &pip);
}

#[test]
fn a_waiting_set_up_can_be_stopped() {
    let machine = Machine::new();
    let (first, _) = start_hanging(&machine);
    let log = machine.path("second");
    let mut second =
        machine.xtask(&["setup", "--cpu"]).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    wait_for(|| fs::read_to_string(&log).unwrap().contains("waiting for another").then_some(()));
    kill("-INT", &second.id().to_string());
    assert_eq!(second.wait().unwrap().code(), Some(130));
    kill("-INT", &first.id().to_string());
    assert_eq!(first.wait_with_output().unwrap().status.code(), Some(130));
}
