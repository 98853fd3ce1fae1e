//! Kinds of faults of `cargo xtask gpu-faults`, at one moment.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dtrain_test_kit::need::{Need, require};
use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::programs::{build_folder, program, without_outer_run};

#[test]
fn every_kind_of_fault_ends_with_its_cause_and_a_second_launch_trains() {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/libtorch/torch/lib/libtorch_cuda.so");
    let found = library.exists().then_some(()).ok_or_else(|| format!("no {}", library.display()));
    if require(Need::LibtorchCuda, found).is_err() {
        return;
    }
    let mut faults = Command::new(program("lab"));
    without_outer_run(&mut faults);
    // Cargo sets this variable to this test's package; the lab must find its own.
    faults.env_remove("CARGO_MANIFEST_DIR").args(["gpu-faults", "--moments", "1"]);
    // The start, a kernel, memory, NCCL and a graph; faults that end with an error, with a hang and well.
    let some = ["initialization", "a kernel never ends", "memory, once", "NCCL hangs", "a capture"];
    if !thorough::is_wanted() {
        faults.args(some.iter().flat_map(|kind| ["--only", kind]));
    }
    faults.arg("--bin-dir").arg(build_folder());
    let text = expect_exit_code(&finish(&mut faults, Duration::from_secs(500)), 0);
    assert!(text.contains(" cases, 0 failed"), "{text}");
}
