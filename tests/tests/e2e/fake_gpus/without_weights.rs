//! Models that were imported without the values of their large tensors.

use std::fs;

use dtrain_test_kit::forks;
use dtrain_tests::process::expect_exit_code;

use super::Machine;
use crate::import::import;

const RECIPE: &str = r#"
task = "classify"
[data]
kind = "generated"
classes = 4
image_size = 16
train_samples = 16
test_samples = 8
[model]
file = "model.pt2"
[train]
effective_batch = 8
steps = 3
[optim]
name = "adamw"
lr = 0.001
"#;

/// The file is as small as its programs. A training from zeros has to be wanted.
#[test]
fn a_model_without_weights_is_stepped_only_if_zeros_are_wanted() {
    let Ok(python) = forks::pytorch() else { return };
    let Ok(machine) = Machine::new(2, RECIPE) else { return };
    let folder = machine.sandbox.path("");
    let args = ["large.py:make", "--weights", "none", "--check-with", "layers=1"];
    let text = expect_exit_code(&import(&python, &folder, &args), 0);
    assert!(text.contains("none for tensors of 1 MiB or more"), "{text}");
    assert!(text.contains("with layers=1, not at full size"), "{text}");
    let size = fs::metadata(folder.join("model.pt2")).unwrap().len();
    assert!(size < 1 << 20, "{size} bytes: {text}");

    machine.describe("hollow = \"256KiB\"\n[[gpu]]\ncount = 2\n");
    let refused = expect_exit_code(&machine.launch("refused", &["--nproc", "1"], &[]), 2);
    assert!(refused.contains("model.zero_weights = true"), "{refused}");
    let (run, text) = machine.train("zeros", &["--nproc", "2", "--set", "model.zero_weights=true"]);
    assert!(text.contains("its large tensors are zero"), "{text}");
    // 1,048,576 of them are in the four matrices that the file lacks.
    assert!(text.contains("1450500 parameters"), "{text}");
    assert_eq!(run.result().steps, Some(3));
}
