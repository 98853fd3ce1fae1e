//! Random modules of PyTorch are trained as eager PyTorch trains them, or refused for a true reason.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dtrain_test_kit::{need, thorough};
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::programs::{without_outer_run, worker};
use serde_json::Value;

/// The first seed.
const FIRST: usize = 230;
/// The numbers of seeds.
const COUNTS: [usize; 2] = [2, 20];

#[test]
fn random_modules_are_equal_or_refused_for_a_true_reason() {
    let count = COUNTS[usize::from(thorough::is_wanted())];
    let Ok(python) = need::pytorch() else { return };
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(python);
    command.arg(workspace.join("tests/lab/python/import_fuzz.py")).arg(workspace.join("launcher/src/import"));
    let (first, number) = (FIRST.to_string(), count.to_string());
    command.arg(worker()).arg(folder.path()).args(["--seed", &first, "--count", &number]);
    command.args(["--no-shrink"]).env("OMP_NUM_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1");
    without_outer_run(&mut command);
    expect_exit_code(&finish(&mut command, Duration::from_secs(600)), 0);
    let lines = fs::read_to_string(folder.path().join("found.jsonl")).unwrap();
    let found: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found.len(), count);
    let is = |found: &&Value, verdicts: &[&str]| verdicts.iter().any(|verdict| found["verdict"] == *verdict);
    let wrong: Vec<_> = found.iter().filter(|found| !is(found, &["equal", "warned", "refused"])).collect();
    assert!(wrong.is_empty(), "cargo xtask import-fuzz --seed SEED --count 1 --keep\n{wrong:#?}");
    let is_recomputed = |found: &Value| found["recomputed"].as_u64() > Some(0);
    let has_recomputed = found.iter().any(is_recomputed) || !thorough::is_wanted();
    assert!(has_recomputed, "no module has a segment to recompute: {found:#?}");
    let trained = found.iter().filter(|found| is(found, &["equal", "warned"])).count();
    assert!(trained >= count * 8 / 10, "{found:#?}");
}
