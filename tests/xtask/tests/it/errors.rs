//! Each thing that can be missing is said in one sentence that names the remedy.

use std::fs;

use crate::machine::Machine;

/// The error of a set-up with some variables; nothing that looks like libtorch is there after it.
#[track_caller]
fn error(machine: &Machine, vars: &[(&str, &str)]) -> String {
    let told = machine.run(&["setup", "--cpu"], vars);
    assert!(!machine.libtorch().exists());
    let scratch = fs::read_dir(machine.staging()).into_iter().flatten().flatten();
    assert_eq!(scratch.filter(|entry| entry.file_name() != "tree").count(), 0);
    told.error().to_owned()
}

#[track_caller]
fn assert_says(sentence: &str, words: &[&str]) {
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
    }
}

#[test]
fn no_python() {
    let machine = Machine::new();
    machine.remove("python3");
    assert_says(
        &error(&machine, &[]),
        &["python3 was not found", "apt install python3 python3-pip"],
    );
}

#[test]
fn no_pip() {
    let machine = Machine::new();
    assert_says(
        &error(&machine, &[("FAKE_PIP", "none")]),
        &["no pip", "apt install python3-pip"],
    );
    assert_says(
        &error(&machine, &[("FAKE_PIP", "broken")]),
        &["does not run pip (ImportError", "apt install"],
    );
}

#[test]
fn no_compiler() {
    let machine = Machine::new();
    machine.remove("c++");
    assert_says(
        &error(&machine, &[]),
        &["no C++ compiler was found", "apt install g++"],
    );
    assert_says(
        &error(&machine, &[("CXX", "absent++ -O2")]),
        &["CXX names absent++ -O2", "not found"],
    );
    machine.script(
        "c++",
        "cat >/dev/null; echo 'fatal error: cstddef: No such file or directory' >&2; exit 1",
    );
    assert_says(
        &error(&machine, &[]),
        &["c++ does not work", "cstddef: No such file", "apt install g++"],
    );
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
fn no_network() {
    let machine = Machine::new();
    assert_says(
        &error(&machine, &[("FAKE_PIP", "network")]),
        &[
            "could not reach the package index",
            "Network is unreachable",
            "HTTPS_PROXY",
        ],
    );
}

#[test]
fn an_index_without_the_version_or_with_another_file() {
    let machine = Machine::new();
    assert_says(
        &error(&machine, &[("FAKE_PIP", "absent")]),
        &["has no torch 2.11.0", "PIP_INDEX_URL"],
    );
    assert_says(
        &error(&machine, &[("FAKE_PIP", "checksum")]),
        &["does not have the pinned checksum", "was not used"],
    );
}

#[test]
fn a_disk_that_fills_up() {
    let machine = Machine::new();
    assert_says(
        &error(&machine, &[("FAKE_PIP", "full")]),
        &["the disk is full", "make room"],
    );
    assert_says(
        &error(&machine, &[("FAKE_UNPACK", "full")]),
        &["the disk is full", "make room"],
    );
}

#[test]
fn words_of_pip_that_nobody_foresaw() {
    let machine = Machine::new();
    assert_says(
        &error(&machine, &[("FAKE_PIP", "odd")]),
        &["torch 2.11.0 (exit code 1): something unheard of"],
    );
}

#[test]
fn a_target_that_cannot_be_written() {
    let machine = Machine::new();
    fs::write(machine.root().join("target"), "a file").unwrap();
    assert_says(&error(&machine, &[]), &["cannot write to", "workspace/target"]);
}

#[test]
fn a_download_that_is_cut_off_goes_on_where_it_was() {
    let machine = Machine::new();
    assert_says(
        &error(&machine, &[("FAKE_PIP", "cut:nvidia-cuda-cupti")]),
        &[
            "download of nvidia-cuda-cupti 13.0.85 was cut off",
            "IncompleteRead",
            "run the same command again",
        ],
    );
    assert_eq!(machine.fetched(), ["torch", "nvidia-cuda-cupti"]);
    let told = machine.run(&["setup", "--cpu"], &[]);
    assert!(told.ok().contains("2 of 3 packages are left"), "{}", told.stderr);
    assert_eq!(machine.fetched(), ["nvidia-cuda-cupti", "nvidia-cuda-runtime"]);
    assert!(machine.libtorch().join("torch/lib/libtorch_cpu.so").exists() && !machine.staging().exists());
}

#[test]
fn a_cut_in_the_cuda_set_leaves_the_cpu_set_whole() {
    let machine = Machine::new();
    machine.run(&["setup", "--cpu"], &[]).ok();
    machine.fetched();
    let told = machine.run(&["setup", "--cuda"], &[("FAKE_PIP", "cut:nvidia-cufft")]);
    assert_says(told.error(), &["nvidia-cufft 12.0.0.61 was cut off"]);
    assert_eq!(machine.fetched().len(), 4);
    machine.run(&["setup", "--cpu"], &[]).ok();
    assert!(machine.fetched().is_empty());
    machine.run(&["setup", "--cuda"], &[]).ok();
    assert_eq!(machine.fetched().len(), 10);
}
