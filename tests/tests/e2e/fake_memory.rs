//! Predictions of memory against libtorch's allocator on fake GPUs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dtrain_test_kit::need::{Need, require};
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::programs::{dtrain, program, without_outer_run};

/// The lab compares 28 networks and settings, in turn on a T4, RTX 3090, A100, H100 and B200.
#[test]
fn predictions_for_gpus_are_the_allocator_s_peaks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let torch = std::env::var_os("LIBTORCH").map_or(root.join("target/libtorch/torch"), Into::into);
    let library = torch.join("lib/libtorch_cuda.so");
    let found = library.exists().then_some(()).ok_or_else(|| format!("no {}", library.display()));
    if require(Need::LibtorchCuda, found).is_err() {
        return;
    }
    let mut command = Command::new(program("lab"));
    without_outer_run(&mut command);
    command.args(["memory", "fake-gpus", "--dtrain"]).arg(dtrain());
    command
        .env("CARGO_MANIFEST_DIR", root.join("tests/lab"))
        .current_dir(root)
        .env_remove("CUDA_VISIBLE_DEVICES");
    expect_exit_code(&finish(&mut command, Duration::from_secs(300)), 0);
}
