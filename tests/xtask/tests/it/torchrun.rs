//! `torchrun`, with a dtrain and a Python that the test provides.

use std::fs;

use crate::machine::{Machine, Outcome};
use crate::runs::machine;

/// A launcher in shell: two ranks that answer with losses, or a run directory, whose path is the last argument. `$LOSS` is rank
/// 0's last and `$STEP` that of the recipe's second step.
const LAUNCHER: &str = r#"for last; do :; done
case "$*" in
*--run-dir*)
    mkdir -p "$last"
    for loss in 2.5 "$STEP" 2.25 2.0 1.75 1.5 1.25 1.0; do echo "{\"step\": 1, \"loss\": $loss}"; done > "$last/metrics.jsonl"
    echo '{"eval": {"loss": 1.0}}' >> "$last/metrics.jsonl"
    echo '{"checkpoint": {"step": 8}}' >> "$last/metrics.jsonl"
    ;;
*)
    echo "[rank 1] {\"rank\": 1, \"local_rank\": 1, \"world\": 2, \"loss\": 0.25, \"parameters\": \"ab\"}"
    echo "{\"rank\": 0, \"local_rank\": 0, \"world\": 2, \"loss\": $LOSS, \"parameters\": \"ab\"}"
    ;;
esac"#;

/// Runs it with what dtrain comes to; torchrun comes to 0.5 and 2.375. `before` is what dtrain does first.
fn compared(before: &str, loss: &str, step: &str) -> Outcome {
    let dtrain = format!("{before}\nLOSS={loss} STEP={step}\n{LAUNCHER}");
    let machine: Machine = machine(&dtrain);
    fs::create_dir_all(machine.root().join("tests/bench")).unwrap();
    let torchrun = format!(
        "case \"$*\" in '-m torch.distributed.run --nproc-per-node 2 --master-port '*) ;; *) exit 9 ;; esac\n\
         LOSS=0.5 STEP=2.375\n{LAUNCHER}"
    );
    machine.script("pytorch", &torchrun);
    let python = machine.path("bin/pytorch");
    machine.run(&["torchrun", "--cpu", "--python", python.to_str().unwrap()], &[])
}

#[test]
fn equal_results_are_a_success() {
    let told = compared("", "0.5", "2.375");
    assert!(
        told.ok()
            .lines()
            .last()
            .unwrap()
            .ends_with("the same results, to the last bit"),
        "{}",
        told.stderr
    );
    for way in [
        "dtrain launch -- python script.py",
        "dtrain launch script.py",
        "dtrain launch -m script",
        "torchrun dtrain-worker recipe",
    ] {
        assert!(
            told.stderr.lines().any(|line| line == way),
            "{way}: {}",
            told.stderr
        );
    }
}

#[test]
fn every_difference_is_told_and_fails() {
    let told = compared("", "0.5000000000000001", "2.3750000000000004");
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    let different: Vec<&str> = told
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("DIFFERENT: "))
        .collect();
    assert_eq!(different.len(), 4, "{}", told.stderr);
    assert!(
        different[1].starts_with("the script: dtrain launch script.py: rank 0: {")
            && different[1].contains("0.5000000000000001"),
        "{}",
        different[1]
    );
    assert_eq!(
        different[3],
        "dtrain-worker: loss of step 2: 2.3750000000000004 with dtrain, 2.375 with torchrun"
    );
}

#[test]
fn a_launch_that_fails_is_told_beside_those_that_do_not() {
    let before = r#"case "$*" in *" -m "*) echo "no such module" >&2; exit 3 ;; esac"#;
    let told = compared(before, "0.5", "2.375");
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    let last = told.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("DIFFERENT: the script: dtrain launch -m script: it ended with exit code 3")
            && last.contains("no such module"),
        "{}",
        told.stderr
    );
}
