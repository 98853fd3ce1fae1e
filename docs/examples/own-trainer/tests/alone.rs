//! Runs the program alone, as rank 0 of 1. This file also makes `cargo test` build the program.

use std::process::Command;

#[test]
fn the_example_trains_and_writes_a_result() {
    let folder = concat!(env!("CARGO_TARGET_TMPDIR"), "/alone");
    let _ = std::fs::remove_dir_all(folder);
    let output = Command::new(env!("CARGO_BIN_EXE_own-trainer"))
        .args([
            concat!(env!("CARGO_MANIFEST_DIR"), "/recipe.toml"),
            "--run-dir",
            folder,
            "--set",
            "train.steps=3",
        ])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1000 points") && text.contains("close"), "{text}");
    assert!(std::path::Path::new(folder).join("result.json").is_file());
}
