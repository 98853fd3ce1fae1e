//! The suite for real GPUs, rehearsed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::programs::program;
use serde_json::Value;

use super::{LIMIT, Machine};

/// Checks run whole, and their values are skipped by name: never on a real GPU.
#[test]
fn the_suite_for_gpus_skips_values_only() {
    let Ok(machine) = Machine::new(1, "") else { return };
    let pack = machine.sandbox.path("pack");
    fs::create_dir_all(pack.join("bin")).unwrap();
    for name in ["dtrain", "dtrain-worker", "gpu-rank", "lab"] {
        symlink(program(name), pack.join("bin").join(name)).unwrap();
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (from, to) in [("bench", "bench"), ("parity/reference", "reference")] {
        symlink(tests.join(from), pack.join(to)).unwrap();
    }
    let checks = [
        ("training", "CPU and GPU agree: GPT", "losses of all steps differ by at most"),
        ("kernels", "segments with dropout, bit-equal", "dropout by sample"),
        ("kernels", "copies on another stream", "skipped 20 comparisons"),
    ];
    for &(part, check, words) in thorough::cases(&checks, 1) {
        let mut command = machine.command_of(&pack.join("bin/lab"));
        command.args(["gpu-test", part, "--only", check, "--pack"]).arg(&pack);
        expect_exit_code(&finish(&mut command, LIMIT), 0);
        let results: Value = serde_json::from_slice(&fs::read(pack.join("results.json")).unwrap()).unwrap();
        let row = &results["groups"][0]["rows"][0];
        assert_eq!((row["name"].as_str(), row["verdict"].as_str()), (Some(check), Some("skipped")), "{row}");
        let note = row["note"].as_str().unwrap();
        assert!(note.starts_with("fake GPUs compute no values") && note.contains(words), "{note}");
    }
}
