//! The end of `dtrain import`: the trainer's own steps beside PyTorch's results.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use dtrain_common::question::CheckAnswer;
use dtrain_test_kit::{forks, thorough};
use dtrain_tests::process::{expect_exit_code, output_text};
use dtrain_tests::programs::{dtrain, worker};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::import::{import, marked_line, run};

/// Returns an entry of an archive as JSON. Entries are not compressed.
fn entry(python: &Path, file: &Path, name: &str) -> Value {
    let program = "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); \
                   print(z.read(next(n for n in z.namelist() if n.endswith(sys.argv[2]))).decode())";
    let mut command = Command::new(python);
    command.args(["-c", program]).arg(file).arg(name);
    answer_of(run(command, python))
}

/// Returns what a program printed to standard output.
fn answer_of<T: DeserializeOwned>(output: Output) -> T {
    expect_exit_code(&output, 0);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_program_that_differs_for_one_sample_needs_two() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = import(&python, folder.path(), &["models.py:single"]);
    let text = expect_exit_code(&output, 0);
    assert!(
        text.contains("  checked      with PyTorch, at batches of 2, 3, 4, 6, 8, 12: equal bit by bit\n"),
        "{text}"
    );
    let warnings = output_text(&output);
    for words in ["micro-batches", "batches of an evaluation"] {
        let warning = format!("warning: {words} need at least 2 samples, because a single one is refused (");
        assert!(warnings.contains(&warning), "{warnings}");
    }
    let notes = entry(&python, &folder.path().join("model.pt2"), "extra/check.json");
    assert_eq!(notes["smallest"], json!({ "train": 2, "evaluate": 2 }));
}

#[test]
fn a_smaller_model_of_the_same_form_is_compared() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let convolution = "in training, module `conv` (Conv2d), the model has `aten.conv2d";
    for &(with, message) in thorough::cases(
        &[
            ("kernel=5", convolution),
            (
                "act=GELU",
                "in training, module `blocks.N` (Sequential), the model has a call of module `blocks.N.N` (ReLU)",
            ),
            ("size=1", "--check-with size: models.py:sized takes no such argument"),
        ],
        2,
    ) {
        let args = ["models.py:sized", "--check-with", with, "--force"];
        let text = expect_exit_code(&import(&python, folder.path(), &args), 2);
        assert!(text.contains(message) && text.matches("error:").count() == 1, "{text}");
    }
    for (with, operation) in
        [("kernel=5", "`aten.conv2d"), ("turned=true", "`aten.relu"), ("most=0.5", "`aten.clamp")]
    {
        let args = ["models.py:mixed", "--check-with", with, "--force"];
        let text = expect_exit_code(&import(&python, folder.path(), &args), 2);
        assert!(text.contains("differs in more than sizes") && text.contains(operation), "{with}: {text}");
    }
    let args = ["models.py:sized", "--check-with", "image_size=8", "--check-with", "depth=1"];
    let output = import(&python, folder.path(), &args);
    let text = expect_exit_code(&output, 0);
    for line in [
        "  inputs       image  float32  N x 3 x 16 x 16\n",
        "  outputs      logits  float32  N x 4\n               map  float32  N x 8 x 16 x 16\n",
        "  parameters   1,036\n",
        "with depth=1, image_size=8, not at full size\n",
        "  image_size = 16\n",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
    let notes = entry(&python, &folder.path().join("model.pt2"), "extra/check.json");
    assert_eq!(notes["checked"]["with"], json!({ "image_size": 8, "depth": 1 }));
}

#[test]
fn a_program_that_fails_in_mixed_precision_is_named_by_line() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let warnings = |args: &[&str]| {
        let output = import(&python, folder.path(), &[args, &["--force"]].concat());
        expect_exit_code(&output, 0);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = warnings(&["models.py:cast"]);
    let place = format!("models.py:{} `", marked_line("models.py", "cast"));
    for words in [
        "warning: in mixed precision on GPUs the training program fails: scatter",
        &place,
        "precision.amp = \"off\"",
    ] {
        assert!(text.contains(words), "no {words:?} in:\n{text}");
    }
    let text = warnings(&["models.py:cast", "--arg", "follows=true"]);
    assert!(!text.contains("mixed precision"), "{text}");
}

/// Imports a model and keeps the folder of its check, with the file.
fn kept_check(python: &Path, folder: &Path) -> Value {
    let script = folder.join("worker");
    let copy = format!(
        "#!/bin/sh\ncp -r {0}/model.pt2.partial.check {0}/kept && cp {0}/model.pt2.partial {0}/kept/model.pt2\nexec {1} \"$@\"\n",
        folder.display(),
        worker().display()
    );
    fs::write(&script, copy).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(dtrain());
    command.args(["import", "models.py:two_inputs", "-o"]).arg(folder.join("model.pt2"));
    command.env("DTRAIN_WORKER", &script);
    expect_exit_code(&run(command, python), 0);
    let mut check: Value =
        serde_json::from_slice(&fs::read(folder.join("kept/check.json")).unwrap()).unwrap();
    check["file"] = "model.pt2".into();
    check
}

/// Runs a check in `folder/kept`.
fn answer(python: &Path, folder: &Path, check: &Value) -> CheckAnswer {
    let kept = folder.join("kept");
    fs::write(kept.join("check.json"), check.to_string()).unwrap();
    let mut command = Command::new(worker());
    command.args(["check", "--job", &json!({ "job": "check", "folders": [kept] }).to_string()]);
    answer_of(run(command, python))
}

/// Each tensor of PyTorch's results is compared: a wrong one is named.
#[test]
fn every_wrong_tensor_is_named() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut check = kept_check(&python, folder.path());
    let kept = folder.path().join("kept");
    let all = check["cases"].as_array().unwrap().clone();
    // Each case with PyTorch's results, and with each tensor changed: one start of the trainer for all.
    let (mut cases, mut wrong) = (Vec::new(), Vec::new());
    for (mode, wanted) in
        [("training", vec!["output", "grad", "buffer"]), ("evaluation", vec!["output", "buffer"])]
    {
        let name = format!("{mode}, 2 samples");
        let case = all.iter().find(|case| case["name"] == name).unwrap();
        cases.push(case.clone());
        wrong.push(None);
        let bytes = fs::read(kept.join(case["expected"].as_str().unwrap())).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let mut kinds = Vec::new();
        for (name, info) in header.as_object().unwrap() {
            let begin = 8 + length + info["data_offsets"][0].as_u64().unwrap() as usize;
            let mut changed = bytes.clone();
            // Of integers, also the smallest change is seen.
            match info["dtype"] == "I64" {
                true => changed[begin] ^= 1,
                false => changed[begin..begin + 4].copy_from_slice(&3.7f32.to_le_bytes()),
            }
            let file = format!("wrong-{}.safetensors", cases.len());
            fs::write(kept.join(&file), changed).unwrap();
            let mut case = case.clone();
            case["expected"] = file.into();
            cases.push(case);
            let [_, kind, tensor] = name.splitn(3, '.').collect::<Vec<_>>()[..] else { panic!("{name}") };
            wrong.push(Some(format!("`{tensor}`")));
            kinds.push(kind);
        }
        for kind in wanted {
            assert!(kinds.contains(&kind), "{mode}: no {kind} in {kinds:?}");
        }
    }
    check["cases"] = cases.into();
    let found = answer(&python, folder.path(), &check).cases;
    assert_eq!(found.len(), wrong.len());
    for (case, tensor) in found.iter().zip(&wrong) {
        let is_right = match tensor {
            Some(tensor) => case.error.as_ref().is_some_and(|error| error.contains(tensor)),
            None => case.error.is_none(),
        };
        assert!(is_right, "{tensor:?}: {case:?}");
    }
    let broken = json!({ "file": "model.pt2", "inputs": "inputs.safetensors", "tolerance": 1e-5 });
    assert!(
        answer(&python, folder.path(), &broken)
            .error
            .is_some_and(|error| error.contains("missing field `cases`"))
    );
}
