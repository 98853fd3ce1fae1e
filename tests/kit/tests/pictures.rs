//! Checks that the pictures of the documentation are drawn from their recorded figures.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use dtrain_test_kit::need::{self, Need};

#[test]
fn committed_pictures_are_those_of_the_recorded_figures() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures/draw.py");
    match Command::new("python3").args([script.as_os_str(), "--check".as_ref()]).output() {
        Err(error) => need::skip(Need::Python, format!("python3 does not start: {error}")),
        Ok(drawn) => assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr)),
    }
}
