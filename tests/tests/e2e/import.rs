//! `dtrain import` with PyTorch: models that it takes, and models that it rejects by module and line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use dtrain_test_kit::{forks, thorough};
use dtrain_tests::process::{expect_exit_code, finish, output_text};
use dtrain_tests::programs::{dtrain, without_outer_run};

pub(crate) const LIMIT: Duration = Duration::from_secs(300);
const FAILING: &str = "failing.py";

/// Functions of failing.py without an export. Their errors name the module `blocks.1` and the marked line.
const UNEXPORTABLE: [(&str, &str); 6] = [
    ("branch", "a branch depends on the values of a tensor"),
    ("static_view", "the model takes 8 samples, but not 2"),
    ("item", "a tensor becomes a Python number"),
    ("length", "a tensor becomes a Python number"),
    ("mask", "a size depends on the values of a tensor"),
    ("static_zeros", "the model takes 8 samples, but not 2"),
];

/// Functions of failing.py whose exports would train otherwise. Their errors are like those above.
const CHANGING: [(&str, &str); 10] = [
    ("batch_parity", "the batch size decides a branch (`Eq(Mod(x.shape[0], 2), 1)` is false for 2 samples)"),
    ("overwrite", "an in-place operation overwrites a tensor that backward needs"),
    ("numpy_trip", "a tensor is converted to NumPy"),
    ("custom", "dtrain_test::double is no operation of PyTorch itself"),
    ("batch_branch", "the batch size decides a branch (it must be 2 to 4)"),
    ("one_batch", "the batch size decides a branch (`Ne(x.shape[0], 12)` is false for 12 samples)"),
    (
        "evaluation_branch",
        "the batch size decides a branch (`192*x.shape[0] <= 1500` is false for 8 samples)",
    ),
    ("batch_loop", "the batch size is fixed"),
    ("leaf", "a parameter is changed in place"),
    ("straight_through", "the autograd function Straight has its own backward"),
];

/// Functions of failing.py whose errors are about the whole model.
const MODELS: [(&str, &str); 9] = [
    ("chance", "forward depends on something that the export has fixed, such as Python's random numbers"),
    ("modes", "returns output [2] in training mode, but boxes [2, 8] in evaluation mode"),
    ("data_write", "forward changes the parameter `layer.weight`"),
    ("text_output", "returns a value of type str as `kind`"),
    ("no_output", "returns None"),
    ("no_parameters", "Empty has no parameters"),
    ("missing_argument", "needs an argument `weight`"),
    ("loss_output", "the output `output` has no batch"),
    ("detached", "depends on a parameter that is trained"),
];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/import")
}

pub(crate) fn import(python: &Path, folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(dtrain());
    command.arg("import").args(args).arg("-o").arg(folder.join("model.pt2"));
    run(command, python)
}

/// Runs a command in the folder of the fixtures, with this Python.
pub(crate) fn run(mut command: Command, python: &Path) -> Output {
    without_outer_run(&mut command);
    command.env("PYTHON_EXEC", python).env("OMP_NUM_THREADS", "1").current_dir(fixtures());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    forks::connect(&mut command);
    finish(&mut command, LIMIT)
}

/// Checks that the model is rejected by one error with these texts, and that no file remains.
#[track_caller]
pub(crate) fn rejected(python: &Path, args: &[&str], expected: &[&str]) {
    let (folder, function) = (tempfile::tempdir().unwrap(), args[0]);
    let output = import(python, folder.path(), args);
    expect_exit_code(&output, 2);
    let text = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<_> = text.lines().filter(|line| line.starts_with("dtrain: error: ")).collect();
    let [error] = errors[..] else { panic!("{function}: not one error in:\n{text}") };
    for part in expected {
        assert!(error.contains(part), "{function}: no {part:?} in:\n{error}");
    }
    assert!(!text.contains("Traceback"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{function}");
}

/// Returns the number of the line that ends in `# here: NAME`.
pub(crate) fn marked_line(file: &str, name: &str) -> usize {
    let text = fs::read_to_string(fixtures().join(file)).unwrap();
    let mark = format!("# here: {name}");
    text.lines().position(|line| line.ends_with(&mark)).unwrap() + 1
}

#[track_caller]
pub(crate) fn rejected_by_line(python: &Path, file: &str, constructs: &[(&str, &str)]) {
    for (function, message) in constructs {
        let place = format!("{file}:{} `", marked_line(file, function));
        rejected(python, &[&format!("{file}:{function}")], &[message, "module `blocks.1` (", &place]);
    }
}

#[test]
fn constructs_that_no_export_can_have_are_named_by_module_and_line() {
    let Ok(python) = forks::pytorch() else { return };
    rejected_by_line(&python, FAILING, thorough::cases(&UNEXPORTABLE, 2));
}

#[test]
fn constructs_that_change_the_training_are_named_by_module_and_line() {
    let Ok(python) = forks::pytorch() else { return };
    rejected_by_line(&python, FAILING, thorough::cases(&CHANGING, 3));
}

#[test]
fn models_without_use_are_rejected() {
    let Ok(python) = forks::pytorch() else { return };
    for &(function, message) in thorough::cases(&MODELS, 3) {
        rejected(&python, &[&format!("{FAILING}:{function}")], &[message]);
    }
}

#[test]
fn an_imported_model_is_the_model() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = import(&python, folder.path(), &["models.py:two_inputs", "--classes", "7"]);
    let text = expect_exit_code(&output, 0);
    for line in [
        "  inputs       image  float32  N x 3 x 8 x 8\n               age  float32  N x 5\n",
        "  outputs      logits  float32  N x 7\n               features  float32  N x 8\n",
        "  evaluation   returns only logits\n",
        "of which 8 are frozen",
        "  batch norm   1 layer: results depend on the micro-batch\n",
        "  random       1 dropout\n",
        "  unused       spare.weight, spare.bias: no output depends on them\n",
        "  task = \"classify\"\n  [data]\n  image_size = 8\n  [model]\n",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
    let mut check = Command::new(&python);
    check.arg("check.py").arg(folder.path().join("model.pt2"));
    let output = run(check, &python);
    assert!(expect_exit_code(&output, 0).contains("equal"), "{}", output_text(&output));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn inputs_come_from_flags_if_the_function_gives_none() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = import(&python, folder.path(), &["models.py:plain", "--inputs", "input=3x4x4"]);
    let text = expect_exit_code(&output, 0);
    assert!(text.contains("  outputs      output  float32  N x 3\n"), "{text}");
    let text = expect_exit_code(&import(&python, folder.path(), &["models.py:plain", "--force"]), 2);
    assert!(text.contains("the inputs of plain in models.py are unknown"), "{text}");
    let unused = ["models.py:plain", "--inputs", "input=3x4x4", "--image-size", "4", "--force"];
    let text = expect_exit_code(&import(&python, folder.path(), &unused), 2);
    let words = "--image-size has no effect: plain in models.py takes no argument `image_size`";
    assert!(text.contains(words), "{text}");
}
