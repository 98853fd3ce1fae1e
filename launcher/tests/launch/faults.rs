//! Workers that misuse their streams, and invalid recipes.

use crate::harness::Scene;
use std::fs;

#[test]
fn a_worker_that_closes_its_streams_goes_on_and_its_end_counts() {
    let script = r#"
        echo before; echo bad >&2
        exec >&- 2>&-
        until [ -e "$TEST_DIR/closed.0" ] && [ -e "$TEST_DIR/closed.1" ]; do : > "$TEST_DIR/closed.$RANK"; sleep 0.01; done
        if [ $RANK = 1 ]; then exit 21; fi
        exec sleep 600"#;
    let done = Scene::new().sh(2, &[], script);
    done.expect_code(21).expect_stderr("dtrain: rank 1 (pid ").expect_stderr("bad");
    assert_eq!(done.stdout().matches("before").count(), 2);
}

#[test]
fn closed_streams_are_no_failure() {
    let done = Scene::new().sh(2, &[], "echo here; exec >&- 2>&-; exit 0");
    assert_eq!(done.expect_code(0).stdout().matches("here").count(), 2);
}

#[test]
fn recipes_that_cannot_be_read_are_refused_before_anything_is_written() {
    let scene = Scene::new();
    fs::create_dir(scene.path(".folder.toml")).unwrap();
    fs::write(scene.path(".bytes.toml"), b"task = \"\xff\xfe\"\n").unwrap();
    for recipe in [".folder.toml", ".bytes.toml", ".absent.toml"] {
        scene.launch(&[recipe]).expect_code(2).expect_stderr(recipe);
    }
    scene.expect_nothing_written();
}

#[test]
fn worker_output_may_be_any_bytes() {
    // Without carriage returns, which end a progress frame.
    let script = r"head -c 300000 /dev/urandom | tr -d '\r'; printf '\n'; head -c 5000 /dev/zero >&2";
    let done = Scene::new().sh(2, &["--run-dir", "out"], script);
    done.expect_code(0);
    assert!(done.stdout.len() > 590_000, "{}", done.stdout.len());
}
