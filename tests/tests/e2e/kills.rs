//! A few of the kills of `cargo xtask kills`: each kind with one rank and with two, and some with rollbacks.

use std::process::Command;
use std::time::Duration;

use dtrain_test_kit::thorough;
use dtrain_tests::process::{finish, output_text};
use dtrain_tests::programs::{build_folder, dtrain, without_outer_run, worker};

/// A normal check kills during four writes: each kind, with a rollback after the third, and with two ranks that shard.
#[test]
fn killed_trainings_resume_bit_equal() {
    let (moments, seed) = if thorough::is_wanted() { ("6", "1") } else { ("4", "24") };
    expect_no_failures(&["--moments", moments, "--seed", seed]);
}

#[test]
fn kills_during_a_rollback_lose_no_checkpoint() {
    if thorough::leaves_out("one of `killed_trainings_resume_bit_equal` is killed in a rollback") {
        return;
    }
    expect_no_failures(&["--moments", "3", "--seed", "1", "--rollbacks"]);
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
    let output = finish(&mut kills, Duration::from_secs(300));
    let text = output_text(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("0 damaged, 0 failed"), "{text}");
}
