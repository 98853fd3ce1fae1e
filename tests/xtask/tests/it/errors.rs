//! Each missing need gives an error of one sentence that names the remedy.

use std::fs;

use crate::machine::Machine;

/// Checks that set-up with these variables fails with these words and leaves nothing like libtorch.
#[track_caller]
fn fails(machine: &Machine, vars: &[(&str, &str)], words: &[&str]) {
    let told = machine.run(&["setup", "--cpu"], vars);
    assert!(!machine.libtorch().exists());
    let scratch = fs::read_dir(machine.staging()).into_iter().flatten().flatten();
    assert_eq!(scratch.filter(|entry| entry.file_name() != "tree").count(), 0);
    for word in words {
        assert!(told.error().contains(word), "{word:?} is not in: {}", told.error());
    }
}

#[test]
fn a_program_that_is_missing_or_broken_is_named() {
    let machine = Machine::new();
    fails(&machine, &[("FAKE_PIP", "none")], &["no pip", "apt install python3-pip"]);
    fails(&machine, &[("FAKE_PIP", "broken")], &["does not run pip (ImportError", "apt install"]);
    machine.remove("python3");
    fails(&machine, &[], &["python3 was not found", "apt install python3 python3-pip"]);
    machine.remove("c++");
    fails(&machine, &[], &["no C++ compiler was found", "apt install g++"]);
    fails(&machine, &[("CXX", "absent++ -O2")], &["CXX names absent++ -O2", "not found"]);
    machine.script("c++", "cat >/dev/null; echo 'fatal error: cstddef: No such file' >&2; exit 1");
    fails(&machine, &[], &["c++ does not work", "cstddef: No such file", "apt install g++"]);
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
        ("FAKE_PIP", "checksum", ["does not have the pinned checksum", "was not used"]),
        ("FAKE_PIP", "full", ["the disk is full", "make room"]),
        ("FAKE_UNPACK", "full", ["the disk is full", "make room"]),
        ("FAKE_PIP", "odd", ["torch 2.11.0 (exit code 1)", "something unheard of"]),
    ] {
        fails(&Machine::new(), &[(variable, value)], &words);
    }
    let machine = Machine::new();
    fs::write(machine.root().join("target"), "a file").unwrap();
    fails(&machine, &[], &["cannot write to", "workspace/target"]);
}

#[test]
fn a_download_that_is_cut_off_goes_on_where_it_was() {
    let machine = Machine::new();
    let words = ["could not fetch nvidia-cuda-cupti 13.0.85", "run the same command again"];
    fails(&machine, &[("FAKE_PIP", "cut:nvidia-cuda-cupti")], &words);
    assert_eq!(machine.fetched(), ["torch", "nvidia-cuda-cupti"]);
    let told = machine.run(&["setup", "--cpu"], &[]);
    assert!(told.ok().contains("2 of 3 packages are left"), "{}", told.stderr);
    assert_eq!(machine.fetched(), ["nvidia-cuda-cupti", "nvidia-cuda-runtime"]);
    assert!(machine.libtorch().join("torch/lib/libtorch_cpu.so").exists() && !machine.staging().exists());
    // A broken download of the CUDA set leaves the CPU set intact.
    let told = machine.run(&["setup", "--cuda"], &[("FAKE_PIP", "cut:nvidia-cufft")]);
    assert!(told.error().contains("could not fetch nvidia-cufft 12.0.0.61"), "{}", told.stderr);
    assert_eq!(machine.fetched().len(), 4);
    machine.run(&["setup", "--cpu"], &[]).ok();
    assert!(machine.fetched().is_empty());
    machine.run(&["setup", "--cuda"], &[]).ok();
    assert_eq!(machine.fetched().len(), 10);
}
