//! Checks that the pictures of the documentation are drawn from their recorded figures.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use dtrain_test_kit::need::{self, Need};

#[test]
fn committed_pictures_are_those_of_the_recorded_figures() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures/draw.py");
    let mut draw = Command::new("python3");
    let Ok(drawn) = need::output(Need::Python, draw.arg(script).arg("--check")) else { return };
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
}
