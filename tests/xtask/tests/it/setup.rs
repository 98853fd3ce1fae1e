//! Files that a set-up creates, and files that it must not change.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::Instant;

use crate::machine::Machine;

const CPU: [&str; 3] = ["torch", "nvidia-cuda-cupti", "nvidia-cuda-runtime"];

fn stamp(machine: &Machine) -> String {
    fs::read_to_string(machine.libtorch().join("dtrain-setup.txt")).unwrap()
}

/// Returns a machine with the CPU set, without notes of its set-up.
fn set_up() -> Machine {
    let machine = Machine::new();
    machine.run(&["setup", "--cpu"], &[]).ok().says("CPU set (--cpu was given)");
    assert_eq!(machine.fetched(), CPU);
    assert!(!machine.staging().exists());
    machine
}

#[test]
fn a_second_set_up_fetches_nothing() {
    let machine = set_up();
    for file in [
        "torch/lib/libtorch_cpu.so",
        "torch/lib/libc10.so",
        "torch/include/ATen/ATen.h",
        "torch/share/cmake/Torch/TorchConfig.cmake",
        "torch/include/torch/headeronly/version.h",
        "torch/nn/functional.py",
        "torch/bin/torch_shm_manager",
        "nvidia/cu13/lib/libcudart.so.13",
        "nvidia/cu13/lib/libcupti.so.13",
        "torch-2.11.0.dist-info/licenses/LICENSE",
    ] {
        assert!(machine.libtorch().join(file).is_file(), "{file}");
    }
    for file in ["torch/bin/protoc", "torch/test"] {
        assert!(!machine.libtorch().join(file).exists(), "{file}");
    }
    assert_eq!(stamp(&machine).lines().count(), 3, "{}", stamp(&machine));

    machine.remove("python3");
    let start = Instant::now();
    machine.run(&["setup", "--cpu"], &[]).ok().says("in target/libtorch");
    assert!(start.elapsed().as_secs_f64() < 2.0, "{:?}", start.elapsed());
    assert!(machine.fetched().is_empty());
    // A set of an earlier version has no stamp, and is kept.
    fs::remove_file(machine.libtorch().join("dtrain-setup.txt")).unwrap();
    machine.run(&["setup", "--cpu"], &[]).ok();
    assert!(stamp(&machine).starts_with("torch==2.11.0 ") && !machine.staging().exists());
    // Without a stamp and with another libtorch, nothing can be used.
    let machine = set_up();
    fs::remove_file(machine.libtorch().join("dtrain-setup.txt")).unwrap();
    let version = "torch/include/torch/headeronly/version.h";
    fs::write(machine.libtorch().join(version), header("10")).unwrap();
    machine.run(&["setup", "--cpu"], &[]).ok();
    assert_eq!(machine.fetched(), CPU);
}

#[test]
fn a_driver_selects_the_cuda_set_and_only_missing_packages_are_fetched() {
    let machine = set_up();
    let library = "printf '\\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1\\n'";
    machine.script("ldconfig", library);
    machine.run(&["setup"], &[]).ok().says("CUDA set (an NVIDIA driver was found: ");
    let fetched = machine.fetched();
    assert!(fetched.len() == 13 && fetched.iter().all(|name| !CPU.contains(&name.as_str())), "{fetched:?}");
    assert_eq!(stamp(&machine).lines().count(), 16);
    let link = machine.libtorch().join("nvidia/nccl/lib/libnccl.so");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("libnccl.so.2"));
    assert_eq!(fs::read_to_string(&link).unwrap(), "nvidia-nccl-cu13 2.28.9");

    // The CUDA set also serves the CPU, and a missing link is created again.
    machine.run(&["setup", "--cpu"], &[]).ok();
    fs::remove_file(&link).unwrap();
    machine.run(&["setup", "--cuda"], &[]).ok();
    assert!(link.exists() && machine.fetched().is_empty());
}

#[test]
fn wrong_or_missing_packages_are_fetched_again() {
    let machine = set_up();
    fs::remove_file(machine.libtorch().join("nvidia/cu13/lib/libcudart.so.13")).unwrap();
    machine.run(&["setup", "--cpu"], &[]).ok();
    assert_eq!(machine.fetched(), ["nvidia-cuda-runtime"]);
    // Another version is replaced as a whole.
    fs::write(machine.libtorch().join("torch/include/torch/headeronly/version.h"), header("10")).unwrap();
    fs::write(machine.libtorch().join("torch/lib/libold.so"), "old").unwrap();
    machine.run(&["setup", "--cpu"], &[]).ok();
    assert_eq!(machine.fetched(), CPU);
    assert!(!machine.libtorch().join("torch/lib/libold.so").exists());
    let library = machine.libtorch().join("torch/lib/libc10.so");
    fs::write(&library, "damaged").unwrap();
    machine.run(&["setup", "--cpu", "--force"], &[]).ok();
    assert_eq!(machine.fetched(), CPU);
    assert_eq!(fs::read_to_string(&library).unwrap(), "library");
    assert!(!machine.staging().exists());
}

#[test]
fn simultaneous_set_ups_fetch_once() {
    let machine = Machine::new();
    let start = |_| machine.xtask(&["setup", "--cpu"]).env("FAKE_PIP", "slow").spawn().unwrap();
    let running: Vec<Child> = (0..3).map(start).collect();
    for child in running {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(machine.fetched(), CPU);
}

fn header(minor: &str) -> String {
    format!(
        "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR {minor}\n#define TORCH_VERSION_PATCH 0\n"
    )
}

#[test]
fn the_users_libtorch_is_checked_and_used() {
    let machine = Machine::new();
    let own = machine.path("own");
    for file in ["lib/libtorch_cpu.so", "lib/libc10.so", "include/ATen/ATen.h"] {
        fs::create_dir_all(own.join(file).parent().unwrap()).unwrap();
        fs::write(own.join(file), "x").unwrap();
    }
    let named = own.to_str().unwrap();
    let version = own.join("include/torch/headeronly/version.h");
    fs::create_dir_all(version.parent().unwrap()).unwrap();
    fs::write(&version, header("11")).unwrap();
    let run = |libtorch: &str| machine.run(&["setup"], &[("LIBTORCH", libtorch)]);
    run(named).ok().says(&format!("from LIBTORCH, {named}"));
    assert!(machine.fetched().is_empty() && !machine.libtorch().exists());
    fs::write(own.join("build-version"), "2.11.0a0+git\n").unwrap();
    run(named).error(&["is version 2.11.0a0, not 2.11.0"]);
    fs::remove_file(own.join("build-version")).unwrap();

    let root = machine.root();
    fs::write(version, header("10")).unwrap();
    for (value, words) in [
        (named, "is version 2.10.0, not 2.11.0"),
        (root.to_str().unwrap(), "is not a libtorch"),
        ("", "not an absolute path"),
    ] {
        run(value).error(&[words]);
    }
}

#[test]
fn the_build_uses_the_compiler_found() {
    let machine = Machine::new();
    machine.remove("c++");
    machine.script("clang++", "cat >/dev/null");
    machine.script("cargo", "echo \"CXX=$CXX LIBTORCH=$LIBTORCH\" >&2");
    let outcome = machine.run(&["test", "--cpu"], &[]);
    outcome.ok().says("set CXX=clang++");
    assert!(outcome.stderr.ends_with("CXX=clang++ LIBTORCH=\n"), "{}", outcome.stderr);
}
