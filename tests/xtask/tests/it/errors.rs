//! Each missing need gives an error of one sentence that names the remedy.

use std::fs;

use crate::machine::Machine;

/// Checks that set-up with these variables fails with these words and leaves nothing like libtorch.
#[track_caller]
fn expect_failure(machine: &Machine, vars: &[(&str, &str)], words: &[&str]) {
    let outcome = machine.run(&["setup", "--cpu"], vars);
    assert!(!machine.libtorch().exists());
    let scratch = fs::read_dir(machine.staging()).into_iter().flatten().flatten();
    assert_eq!(scratch.filter(|entry| entry.file_name() != "tree").count(), 0);
    outcome.error(words);
}

#[test]
fn missing_or_broken_programs_are_named() {
    let machine = Machine::new();
    expect_failure(&machine, &[("FAKE_PIP", "none")], &["no pip", "apt install python3-pip"]);
    expect_failure(&machine, &[("FAKE_PIP", "broken")], &["cannot run pip: ImportError", "apt install"]);
    machine.remove("python3");
    expect_failure(&machine, &[], &["python3 not found", "apt install python3 python3-pip"]);
    machine.remove("c++");
    expect_failure(&machine, &[], &["no C++ compiler on PATH", "apt install g++"]);
    expect_failure(&machine, &[("CXX", "absent++ -O2")], &["CXX=absent++ -O2 not found", "unset CXX"]);
    machine.script("c++", "cat >/dev/null; echo 'fatal error: cstddef: No such file' >&2; exit 1");
    expect_failure(&machine, &[], &["c++ does not work", "cstddef: No such file", "apt install g++"]);
    assert!(machine.fetched().is_empty());
}

#[test]
fn a_compiler_named_in_cxx_may_have_options() {
    let machine = Machine::new();
    machine.remove("c++");
    machine.script("wrapped", "cat >/dev/null; test \"$1\" = -m64");
    machine.run(&["setup", "--cpu"], &[("CXX", "wrapped -m64")]).ok();
}

#[test]
fn failures_of_pip_and_of_the_disk_are_named() {
    for (variable, value, words) in [
        ("FAKE_PIP", "network", ["could not fetch torch 2.11.0", "Network is unreachable"]),
        ("FAKE_PIP", "absent", ["has no torch 2.11.0", "PIP_INDEX_URL"]),
        ("FAKE_PIP", "checksum", ["wrong checksum of torch 2.11.0", "run the same command again"]),
        ("FAKE_PIP", "full", ["/target is full", "free some space"]),
        ("FAKE_UNPACK", "full", ["/target is full", "free some space"]),
        ("FAKE_PIP", "odd", ["fetch torch 2.11.0 (exit code 1)", "something unheard of"]),
    ] {
        expect_failure(&Machine::new(), &[(variable, value)], &words);
    }
    let machine = Machine::new();
    fs::write(machine.root().join("target"), "a file").unwrap();
    expect_failure(&machine, &[], &["cannot write to", "workspace/target"]);
}

#[test]
fn an_interrupted_download_continues_with_missing_packages() {
    let machine = Machine::new();
    let words = ["could not fetch nvidia-cuda-cupti 13.0.85", "run the same command again"];
    expect_failure(&machine, &[("FAKE_PIP", "cut:nvidia-cuda-cupti")], &words);
    assert_eq!(machine.fetched(), ["torch", "nvidia-cuda-cupti"]);
    machine.run(&["setup", "--cpu"], &[]).ok().says("2 of 3 packages left");
    assert_eq!(machine.fetched(), ["nvidia-cuda-cupti", "nvidia-cuda-runtime"]);
    assert!(machine.libtorch().join("torch/lib/libtorch_cpu.so").exists() && !machine.staging().exists());
    // A broken download of the CUDA set leaves the CPU set intact.
    let outcome = machine.run(&["setup", "--cuda"], &[("FAKE_PIP", "cut:nvidia-cufft")]);
    outcome.error(&["could not fetch nvidia-cufft 12.0.0.61"]);
    assert_eq!(machine.fetched().len(), 4);
    machine.run(&["setup", "--cpu"], &[]).ok();
    assert!(machine.fetched().is_empty());
    machine.run(&["setup", "--cuda"], &[]).ok();
    assert_eq!(machine.fetched().len(), 10);
}
