//! `dtrain import`: what an export would lose without a trace, and what the sources of models give.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dtrain_test_kit::forks;
use dtrain_test_kit::need::{self, Need, Skipped};
use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, output_text};
use dtrain_tests::programs::dtrain;

use crate::exported::{IMAGES, imported};
use crate::import::{import, marked_line, rejected, rejected_by_line, run};

const HIDDEN: &str = "hidden.py";

/// Functions of hidden.py whose errors name the module `blocks.1` and the marked line.
const LOST: [(&str, &str); 5] = [
    ("tensor_hook", "forward sets a hook on a gradient, which an export loses"),
    ("captured", "the autograd function Straight has its own backward"),
    ("node_hook", "forward sets a hook on a gradient, which an export loses"),
    ("repeated", "the autograd function Straight has its own backward"),
    ("severed", "checkpoint(use_reentrant=True) gives no gradient"),
];

/// Functions of hidden.py whose errors name a tensor or a module, and a remedy.
const NAMED: [(&str, &[&str]); 20] = [
    ("parameter_hook", &["the parameter `head.weight` has a hook on its gradient", "remove the hook"]),
    ("sliced", &["`first` [8, 8] and `second` [8, 8] are views of the same memory"]),
    ("complex_written", &["forward changes the complex buffer `table`"]),
    ("small_float", &["`table` is of type float8_e4m3fn, which dtrain does not load"]),
    ("lost_behind_a_gate", &["torch.no_grad or torch.enable_grad inside torch.autocast", "`first.weight`"]),
    ("twins", &["are two tensors of the same memory", "b.weight = a.weight"]),
    ("cumulative", &["module `blocks.0.1` (BatchNorm1d) has momentum=None"]),
    ("accumulated_hook", &["the parameter `head.weight` has a hook on its gradient"]),
    ("module_hook", &["module `head` (Linear) has a backward hook"]),
    ("transposed", &["`a.weight` [4, 8] and `b.weight` [8, 4] are views of the same memory", "keep one"]),
    ("viewed", &["`a.weight` [4, 8] and `b.weight` [8, 4] are views of the same memory"]),
    ("complex_parameter", &["the parameter `table` is complex64", "torch.view_as_complex"]),
    ("unsigned", &["`table` is of type uint16, which dtrain does not load"]),
    ("constant", &["`table` is of type uint16, which dtrain does not load"]),
    ("half", &["the parameter `blocks.0.weight` is float16", "model.float()"]),
    ("sparse", &["the embedding has sparse=True", "module `words` (Embedding)"]),
    ("counter_in_a_dict", &["it changes the attribute `seen`"]),
    ("own_generator", &["it changes the attribute `generator`"]),
    ("counter_of_a_class", &["it changes the attribute `calls`"]),
    ("resized", &["forward gives the buffer `mean` of Resized another shape or dtype"]),
];

/// Functions of hidden.py that are imported without a warning.
const TAKEN: [&str; 9] = [
    "normed_weight",
    "checkpointed",
    "disjoint",
    "rotary",
    "kept_norm",
    "counted",
    "assigned",
    "gated",
    "tokens",
];

/// Imports a model. Returns standard error without the times of steps.
#[track_caller]
fn taken(python: &Path, folder: &Path, args: &[&str]) -> String {
    let output = import(python, folder, &[args, &["--force"]].concat());
    expect_exit_code(&output, 0);
    let text = String::from_utf8_lossy(&output.stderr);
    let lines = text.lines().filter(|line| !line.ends_with(" s"));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn hooks_and_functions_that_an_export_loses_are_named_by_module_and_line() {
    let Ok(python) = forks::pytorch() else { return };
    rejected_by_line(&python, HIDDEN, thorough::cases(&LOST, 2));
}

#[test]
fn tensors_and_modules_that_cannot_be_trained_are_named() {
    let Ok(python) = forks::pytorch() else { return };
    for &(function, parts) in thorough::cases(&NAMED, 3) {
        rejected(&python, &[&format!("{HIDDEN}:{function}")], parts);
    }
}

#[test]
fn what_an_export_keeps_is_imported() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    // The first with a start of Python, as users start it.
    let users = need::pytorch().ok();
    for (index, function) in thorough::cases(&TAKEN, 1).iter().enumerate() {
        let python = users.as_ref().filter(|_| index == 0).unwrap_or(&python);
        let text = taken(python, folder.path(), &[&format!("{HIDDEN}:{function}")]);
        assert_eq!(text, "", "{function}");
    }
}

#[test]
fn modes_and_orders_are_warned_of() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let orders =
        [("shuffled", "randperm"), ("partners", "randint"), ("ordered", "argsort"), ("flipped", "flip")];
    for &(function, word) in thorough::cases(&orders, 1) {
        let text = taken(&python, folder.path(), &[&format!("{HIDDEN}:{function}")]);
        let start = format!("dtrain: warning: {word} orders the samples of a batch: module `blocks.1` (");
        let place = format!("{HIDDEN}:{} `", marked_line(HIDDEN, function));
        assert!(text.starts_with(&start) && text.contains(&place), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let modes = [
        (
            "evaluated",
            "the function returned a model in eval() mode, with `1` (BatchNorm1d), `2` (Dropout); training",
        ),
        ("padded", "`encoder` (TransformerEncoder): PyTorch may set padded positions to zero in evaluation"),
        (
            "frozen_norm",
            "the function returned modules in eval() mode: `1` (BatchNorm1d); training uses train() mode",
        ),
    ];
    for &(function, words) in thorough::cases(&modes, 1) {
        let text = taken(&python, folder.path(), &[&format!("{HIDDEN}:{function}")]);
        assert!(text.starts_with(&format!("dtrain: warning: {words}")), "{text}");
    }
    if thorough::leaves_out(
        "program_state::an_evaluation_with_random_numbers_gives_the_same_figures, for the run",
    ) {
        return;
    }
    let text = taken(&python, folder.path(), &["state.py:noisy"]);
    let start = "dtrain: warning: results depend on the micro-batch: scaled_dot_product_attention (";
    assert!(text.starts_with(start) && text.contains("--arg attn_implementation=eager"), "{text}");
}

#[test]
fn the_lines_for_the_recipe_have_the_target_and_the_fields() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let lines = |args: &[&str]| {
        let output = import(&python, folder.path(), &[args, &["--force"]].concat());
        expect_exit_code(&output, 0);
        let text = String::from_utf8_lossy(&output.stdout);
        text.split_once("Put into the recipe:\n").unwrap().1.to_owned()
    };
    for &target in thorough::cases(&["vector", "mask", "map"], 1) {
        let field = if target == "vector" { "targets" } else { target };
        let text = lines(&[&format!("targets.py:{target}")]);
        let data = format!("  task = \"program\"\n  [data]\n  target = \"{target}\"\n  image_size = 8\n");
        assert!(text.starts_with(&data), "{text}");
        assert!(text.ends_with(&format!("  inputs = {{ \"other\" = \"{field}\" }}\n")), "{text}");
    }
    let text = lines(&["targets.py:tokens"]);
    assert!(text.starts_with("  task = \"program\"\n  [data]\n  kind = \"text\"\n  [model]\n"), "{text}");
    if thorough::leaves_out("the lines for numbers and texts, in this test") {
        return;
    }
    let text = lines(&["targets.py:segments"]);
    assert!(text.contains("  task = \"segment\"\n  [data]\n  classes = 4\n"), "{text}");
    let text = lines(&["trained.py:towers"]);
    assert!(text.starts_with("  task = \"program\"\n"), "{text}");
    assert!(text.ends_with("  losses = [{ name = \"clip\" }]\n"), "{text}");
}

/// Each with its line of the summary, and with its lines for the recipe.
const KINDS: [(&str, &str, &str); 3] = [
    (
        "episode",
        "  state        centre: written in training; model.state says how a step joins its values\n",
        "  task = \"program\"\n  [data]\n  channels = 1\n  image_size = 8\n  episodes = { n_way = 3, k_shot = 2, n_query = 3 }\n  [model]\n",
    ),
    (
        "pair",
        "  evaluation   returns loss, accuracy\n",
        "  task = \"program\"\n  [data]\n  image_size = 8\n  pairs = true\n  [model]\n",
    ),
    (
        "prompt",
        "  outputs      loss  float32  N\n",
        "  fields = { image = \"image:image\", mask = \"mask:mask\", tokens = \"text:prompt,answer\" }\n  tokenizer = ",
    ),
];

#[test]
fn episodes_partners_and_texts_have_their_lines() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    for &(kind, summary, recipe) in thorough::cases(&KINDS, 1) {
        let output = import(&python, folder.path(), &[&format!("targets.py:{kind}"), "--force"]);
        let text = expect_exit_code(&output, 0);
        for line in
            [summary, recipe, "  # state = { centre = \"...\" }  # each \"mean\", \"append\" or \"last\"\n"]
        {
            assert!(text.contains(line), "{kind}: no {line:?} in:\n{text}");
        }
        assert_eq!(text.contains("  batchnorm = \"group:1\"\n"), kind == "episode", "{text}");
        assert!(!text.contains("target ="), "{text}");
    }
}

#[test]
fn arguments_of_the_builder_and_sizes_reach_the_function() {
    let Ok(python) = forks::pytorch() else { return };
    let folder = tempfile::tempdir().unwrap();
    let sizes = [("8x8", "(8, 8) 0.5 'gelu'"), ("8", "8 0.5 'gelu'")];
    for &(size, expected) in thorough::cases(&sizes, 1) {
        let args = ["targets.py:noted", "--image-size", size, "--arg", "rate=0.5", "--arg", "act=gelu"];
        let text = taken(&python, folder.path(), &args);
        assert_eq!(text, format!("{expected}\n"));
    }
    let known =
        "targets.py:noted takes no such argument; similar names: rate, act; it takes image_size, rate, act";
    rejected(&python, &["targets.py:noted", "--arg", "rat=0.5"], &[&format!("--arg rat: {known}")]);
    let own = "--arg image_size: dtrain sets this argument; use --image-size";
    rejected(&python, &["targets.py:noted", "--arg", "image_size=8"], &[own]);
}

/// Returns the Python with PyTorch, if it has these packages.
#[track_caller]
pub(crate) fn python_with(packages: &str) -> Result<PathBuf, Skipped> {
    let python = need::pytorch()?;
    let mut command = Command::new(&python);
    command.args(["-c", &format!("import {packages}")]);
    let has_packages = run(command, &python).status.success();
    let why = format!("{} cannot import {packages}", python.display());
    need::require(Need::Networks, has_packages.then_some(python).ok_or(why))
}

#[test]
fn pretrained_weights_fill_all_but_the_head() {
    let Ok(python) = python_with("transformers, timm") else { return };
    let folder = tempfile::tempdir().unwrap();
    let [vit, own] = ["vit", "timm"].map(|name| folder.path().join(name).display().to_string());
    let mut maker = Command::new(&python);
    maker.args(["pretrained.py", "write", &vit, &own]);
    expect_exit_code(&run(maker, &python), 0);
    let hf = format!("hf:{vit}");
    let hf = |flags: &[&'static str]| [&[hf.as_str(), "--pretrained"], flags].concat();

    assert_eq!(taken(&python, folder.path(), &hf(&[])), "");
    let text = taken(&python, folder.path(), &hf(&["--image-size", "64", "--classes", "3"]));
    let resampled = "vit.embeddings.position_embeddings was resampled from 4x4 to 8x8";
    let new = "new weights, not pretrained: classifier.bias, classifier.weight";
    assert_eq!(text, format!("dtrain: {resampled}\ndtrain: {new}\n"));
    let mut check = Command::new(&python);
    check.args(["pretrained.py", "compare", &vit]).arg(folder.path().join("model.pt2"));
    let output = run(check, &python);
    assert!(expect_exit_code(&output, 0).contains("equal"), "{}", output_text(&output));

    let projection =
        "have no fitting `vit.embeddings.patch_embeddings.projection.weight`, which would be random";
    rejected(&python, &hf(&["--channels", "1"]), &[projection, "leave out --channels, or --pretrained"]);
    let layers = hf(&["--arg", "num_hidden_layers=2"]);
    rejected(&python, &layers, &["`vit.encoder.layer.1.", "leave out --arg, or --pretrained"]);
    let unknown = "--arg dropout: ViTConfig takes no such argument; similar names: hidden_dropout_prob";
    rejected(&python, &hf(&["--arg", "dropout=0.1"]), &[unknown]);

    let timm = format!("timm:local-dir:{own}");
    let args = [&timm, "--pretrained", "--classes", "3", "--arg", "drop_path_rate=0.1"];
    assert_eq!(
        taken(&python, folder.path(), &args),
        "dtrain: new weights, not pretrained: head.weight, head.bias\n"
    );
    let text = taken(&python, folder.path(), &[&timm, "--pretrained", "--image-size", "64"]);
    assert!(
        text.starts_with("dtrain: pos_embed was resampled by timm for images of 64 x 64, from "),
        "{text}"
    );
    let text = expect_exit_code(&import(&python, folder.path(), &[&timm, "--pretrained", "--force"]), 0);
    assert!(text.contains("  crop_fraction = 0.9\n  interpolation = \"bicubic\"\n"), "{text}");
    assert!(text.contains("  mean = [0.5, 0.5, 0.5]\n  std = [0.5, 0.5, 0.5]\n"), "{text}");
    let about = fs::read(folder.path().join("model.pt2")).unwrap();
    let images = r#""images": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic", "crop": 0.9"#;
    assert!(about.windows(images.len()).any(|part| part == images.as_bytes()));
    let unknown =
        "--arg drop_pat_rate: VisionTransformer takes no such argument; similar names: drop_path_rate";
    rejected(&python, &[&timm, "--arg", "drop_pat_rate=0.1"], &[unknown]);
}

#[test]
fn torchvisions_pretrained_weights_fill_all_but_the_head() {
    let Ok(python) = python_with("torchvision") else { return };
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("torch");
    let mut maker = Command::new(&python);
    maker.args(["pretrained.py", "cache"]).arg(&home);
    expect_exit_code(&run(maker, &python), 0);
    let mut command = Command::new(dtrain());
    command.args([
        "import",
        "torchvision:squeezenet1_1",
        "--pretrained",
        "--classes",
        "3",
        "--image-size",
        "32",
    ]);
    command.arg("-o").arg(folder.path().join("model.pt2")).env("TORCH_HOME", home);
    let output = run(command, &python);
    let text = expect_exit_code(&output, 0);
    // ImageNet's mean is the default of the recipe.
    assert!(!text.contains("mean"), "{text}");
    let notes = String::from_utf8_lossy(&output.stderr);
    let new = "dtrain: new weights, not pretrained: classifier.1.weight, classifier.1.bias\n";
    assert!(notes.contains(new), "{notes}");
}

/// Writes `normed` of trained.py by `torch.export.save`, in evaluation mode.
const SAVE_EVALUATED: &str = "import sys, torch, trained
model, images = trained.normed()
batch = {0: torch.export.Dim.DYNAMIC}
program = torch.export.export(model.eval(), (images,), dynamic_shapes=(batch,), strict=False)
torch.export.save(program, sys.argv[1])";

#[test]
fn a_program_of_evaluation_mode_is_trained_with_one_warning() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "normed", "classify", IMAGES, "");
    let warnings = |name: &str| {
        let text = expect_exit_code(&sandbox.launch(2, name, &["train.steps=1"]), 0);
        text.matches("warning: the program was exported in eval() mode").count()
    };
    if thorough::is_wanted() {
        assert_eq!(warnings("imported"), 0);
    }
    let mut maker = Command::new(&python);
    maker.args(["-c", SAVE_EVALUATED]).arg(sandbox.path("model.pt2"));
    expect_exit_code(&run(maker, &python), 0);
    assert_eq!(warnings("evaluated"), 1);
}
