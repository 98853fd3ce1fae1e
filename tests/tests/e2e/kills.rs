//! A few of the kills of `cargo xtask kills`, some with rollbacks.

use std::process::Command;
use std::time::Duration;

use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::programs::{build_folder, dtrain, without_outer_run, worker};

/// The kills of the first seed are amid writes: of a worker, the guardian and all, with a rollback, with two ranks that shard, with another
/// number of ranks after the kill.
#[test]
fn killed_trainings_resume_bit_equal() {
    for seed in thorough::cases(&["24", "1"], 1) {
        expect_no_failures(&["--moments", "6", "--seed", seed]);
    }
}

fn expect_no_failures(which: &[&str]) {
    // If a program is missing, these calls fail and say what to build.
    let (_, _) = (dtrain(), worker());
    let lab = build_folder().join("lab");
    assert!(lab.is_file(), "{} is not built; run `cargo test --workspace`", lab.display());
    let mut kills = Command::new(lab);
    without_outer_run(&mut kills);
    // Cargo sets this variable to this test's package; the lab must find its own.
    kills.env_remove("CARGO_MANIFEST_DIR").arg("kills").args(which).arg("--bin-dir").arg(build_folder());
    let text = expect_exit_code(&finish(&mut kills, Duration::from_secs(300)), 0);
    assert!(text.contains("0 damaged, 0 failed"), "{text}");
}
