//! Exported programs in whole runs: the result does not depend on the cut, and PyTorch loads the weights. Small models
//! of fixtures/import/trained.py, imported with PyTorch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use dtrain_test_kit::{forks, thorough};
use dtrain_tests::process::{expect_exit_code, finish, output_text};
use dtrain_tests::programs::dtrain;
use dtrain_tests::runs::{Sandbox, assert_close};
use dtrain_tests::trainings::{distance, tensors};
use serde_json::Value;

use crate::import::{LIMIT, run};

fn python(python: &Path, args: &[&str]) -> String {
    let mut command = Command::new(python);
    command.args(args);
    expect_exit_code(&run(command, python), 0)
}

/// Imported files by function and flags: several tests train the same model.
static IMPORTED: Mutex<BTreeMap<String, Arc<OnceLock<Vec<u8>>>>> = Mutex::new(BTreeMap::new());

/// Imports a function of trained.py, or FILE.py:FUNCTION, into `sandbox`.
pub(crate) fn import(python: &Path, sandbox: &Sandbox, function: &str, more: &[&str]) {
    let path = sandbox.path("model.pt2");
    let words = [&[function][..], more].concat().join(" ");
    let file = Arc::clone(IMPORTED.lock().unwrap().entry(words).or_default());
    let bytes = file.get_or_init(|| {
        let mut command = Command::new(dtrain());
        let source =
            if function.contains(':') { function.to_owned() } else { format!("trained.py:{function}") };
        command.args(["import", &source, "-o"]).arg(&path).args(more);
        expect_exit_code(&run(command, python), 0);
        std::fs::read(&path).unwrap()
    });
    std::fs::write(&path, bytes).unwrap();
}

/// Returns a sandbox with an imported model and a recipe for it.
pub(crate) fn imported(python: &Path, function: &str, task: &str, data: &str, model: &str) -> Sandbox {
    let sandbox = sandbox(task, data, model);
    import(python, &sandbox, function, &[]);
    sandbox
}

pub(crate) fn sandbox(task: &str, data: &str, model: &str) -> Sandbox {
    let recipe = |file: &Path| {
        format!(
            "task = {task:?}\n[data]\nkind = \"generated\"\n{data}\nworkers = 1\n[model]\nfile = {file:?}\n{model}\n[train]\n\
             effective_batch = 8\nsteps = 12\nseed = 3\n[optim]\nname = \"sgd\"\nlr = 0.05\nmomentum = 0.9\n[checkpoint]\n\
             every = \"1000 steps\"\n[log]\nevery_steps = 1\n"
        )
    };
    let sandbox = Sandbox::new("");
    std::fs::write(sandbox.path("recipe.toml"), recipe(&sandbox.path("model.pt2"))).unwrap();
    sandbox
}

pub(crate) const IMAGES: &str = "image_size = 16\nclasses = 4\ntrain_samples = 20\ntest_samples = 9";
pub(crate) const TEXTS: &str = "tokenizer = \"bytes\"\ntrain_samples = 20\ntest_samples = 5";
const MODEL: &str = "model.safetensors";

/// Ranks, samples of a micro-batch, and recomputing of blocks. The first has ranks with unequal numbers.
const CUTS: [(usize, usize, &str); 4] = [(3, 2, "on"), (1, 3, "off"), (1, 1, "on"), (2, 4, "off")];

/// Trains in several cuts, and compares the weights with those of one rank that takes each step at once.
pub(crate) fn same_in_every_cut(sandbox: &Sandbox) {
    let train = |ranks: usize, name: &str, sets: &[&str]| tensors(&sandbox.train(ranks, name, sets), MODEL);
    let whole = train(1, "whole", &[]);
    for &(ranks, micro_batch, recompute) in thorough::cases(&CUTS, 1) {
        let name = format!("{ranks}-{micro_batch}-{recompute}");
        let micro_batch = format!("memory.micro_batch={micro_batch}");
        let recompute = format!("memory.recompute={recompute}");
        let other = train(ranks, &name, &[&micro_batch, &recompute]);
        let distance = distance(&other, &whole);
        assert!(distance < 1e-6, "{name}: {distance}");
    }
}

#[test]
fn a_classifier_trains_alike_in_every_cut() {
    let Ok(python) = forks::pytorch() else { return };
    same_in_every_cut(&imported(&python, "vit", "classify", IMAGES, ""));
}

#[test]
fn a_program_with_its_own_loss_trains_alike_in_every_cut() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "own_loss", "program", IMAGES, "");
    same_in_every_cut(&sandbox);
    let metrics = sandbox.run("3-2-on").result().final_metrics;
    assert!(metrics.contains_key("accuracy"), "{metrics:?}");
}

#[test]
fn segments_of_half_size_and_auxiliary_heads_are_trained() {
    let Ok(python) = forks::pytorch() else { return };
    let data = "image_size = 16\nclasses = 3\ntrain_samples = 16\ntest_samples = 4";
    let sandbox = imported(&python, "segmenter", "segment", data, "auxiliary = { aux = 0.4 }");
    let without = ["memory.recompute=off"];
    let one = tensors(&sandbox.train(1, "one", &without), MODEL);
    let two = sandbox.train(2, "two", &[without[0], "memory.micro_batch=3"]);
    assert!(distance(&tensors(&two, MODEL), &one) < 1e-6);
    assert!(two.result().final_metrics.contains_key("mean_iou"));
}

/// The groups of `model.batchnorm` are those of the effective batch, whatever the cut.
#[test]
fn batch_norm_over_groups_and_ranks_replaces_the_programs_own() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "normed", "classify", IMAGES, "");
    let of = |ranks: usize, name: &str, norm: &str, micro_batch: &str| {
        let sets = [format!("model.batchnorm={norm}"), format!("memory.micro_batch={micro_batch}")];
        // In more steps, rounding may change the sign of an input of ReLU.
        tensors(&sandbox.train(ranks, name, &[&sets[0], &sets[1], "train.steps=3"]), MODEL)
    };
    let whole = of(1, "local", "local", "8");
    assert!(distance(&of(2, "synced", "synced", "4"), &whole) < 1e-6);
    if thorough::leaves_out("program_state::groups_are_of_samples_whose_rows_are_frames") {
        return;
    }
    let grouped = of(1, "grouped", "group:4", "8");
    assert!(distance(&of(2, "grouped-2", "group:4", "4"), &grouped) < 1e-6);
    assert!(distance(&grouped, &whole) > 1e-3, "groups of four are not the whole batch");
}

/// A head first, then all but one block, at other rates.
const STAGES: &str = r#"
[ema]
decay = 0.8
[[stage]]
name = "head"
steps = 6
freeze = ["blocks.*", "patches.*", "position"]
[[stage]]
name = "most"
steps = 6
freeze = ["blocks.1.*"]
group = [{ match = "blocks.*", lr_factor = 0.1 }, { match = "*.bias", weight_decay = 0.0 }]
"#;

#[test]
fn stages_groups_averages_shards_and_bfloat16_apply() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "vit", "classify", IMAGES, "");
    let recipe = std::fs::read_to_string(sandbox.path("recipe.toml")).unwrap().replace("steps = 12\n", "");
    std::fs::write(sandbox.path("recipe.toml"), recipe + STAGES).unwrap();
    let initial = sandbox.train(1, "initial", &["optim.lr=0"]);
    let whole = sandbox.train(1, "whole", &[]);
    let cut = ["memory.micro_batch=2", "memory.shard_optimizer=true", "memory.recompute=on"];
    let sharded = sandbox.train(2, "sharded", &cut);
    for file in [MODEL, "ema.safetensors"] {
        assert!(distance(&tensors(&sharded, file), &tensors(&whole, file)) < 1e-6, "{file}");
    }
    let (before, after) = (tensors(&initial, MODEL), tensors(&whole, MODEL));
    for (name, value) in &before {
        assert_eq!(value == &after[name], name.starts_with("blocks.1."), "{name}");
    }
    let precise = ["precision.amp=bf16", "memory.recompute=on"];
    let recomputed = tensors(&sandbox.train(1, "bf16-recomputed", &precise), MODEL);
    let distance_to = distance(&recomputed, &after);
    assert!(distance_to > 1e-6 && distance_to < 1e-2, "{distance_to}");
    let half = tensors(&sandbox.train(1, "bf16", &precise[..1]), MODEL);
    assert!(half == recomputed, "recomputing in bfloat16 changes the result");
}

#[test]
fn a_stage_has_its_own_loss() {
    let Ok(python) = forks::pytorch() else { return };
    let data = "target = \"vector\"\nimage_size = 16\ntrain_samples = 16\ntest_samples = 4";
    let sandbox = sandbox("regress", data, "");
    import(&python, &sandbox, "vit", &["--classes", "2"]);
    let recipe = std::fs::read_to_string(sandbox.path("recipe.toml")).unwrap().replace("steps = 12\n", "");
    let stages = "[[stage]]\nname = \"a\"\nepochs = 1\n[[stage]]\nname = \"b\"\nepochs = 1\nloss = \"l1\"\n";
    std::fs::write(sandbox.path("recipe.toml"), recipe + stages).unwrap();
    let losses = |name: &str, ranks: usize, sets: &[&str]| sandbox.train(ranks, name, sets).per_step("loss");
    let (changing, mse) = (losses("changing", 1, &[]), losses("mse", 1, &["stage.1.loss=mse"]));
    assert!(changing[..2] == mse[..2] && changing[2] != mse[2], "{changing:?}, {mse:?}");
    if thorough::leaves_out("worker/src/tasks/regress/tests.rs; ranks: exported::*_in_every_cut") {
        return;
    }
    // A difference that is not 1 has another square.
    let l1 = losses("l1", 1, &["model.loss=l1"]);
    assert!(changing[0] != l1[0], "{changing:?}, {l1:?}");
    assert_close(&changing, &losses("two", 2, &[]), 1e-5);
}

#[test]
fn texts_of_any_length_are_trained() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = sandbox("lm", TEXTS, "");
    import(&python, &sandbox, "any_length", &["--dynamic", "tokens.1"]);
    let train = |ranks: usize, context: usize, micro_batch: usize| {
        let sets = [format!("model.context={context}"), format!("memory.micro_batch={micro_batch}")];
        let run = sandbox.train(ranks, &format!("{ranks}-{context}"), &[&sets[0], &sets[1]]);
        tensors(&run, MODEL)
    };
    for &context in thorough::cases(&[7, 24], 1) {
        assert!(distance(&train(2, context, 3), &train(1, context, 8)) < 1e-6, "{context}");
    }
    let text = expect_exit_code(&sandbox.launch(1, "long", &["model.context=25"]), 2);
    assert!(text.contains("`tokens` has length 25 in dimension 1, and the program takes 2 to 24"), "{text}");
}

/// A test set of 9 samples on 2 ranks in batches of 4 or 2 leaves single samples.
#[test]
fn no_batch_is_smaller_than_the_program_takes() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "from_two", "classify", IMAGES, "");
    let train = |ranks: usize, micro_batch: usize| {
        let set = format!("memory.micro_batch={micro_batch}");
        let run = sandbox.train(ranks, &format!("{ranks}-{micro_batch}"), &[&set]);
        (tensors(&run, MODEL), run.result().final_metrics["accuracy"])
    };
    let (whole, accuracy) = train(1, 8);
    for &(ranks, micro_batch) in thorough::cases(&[(2, 2), (1, 4), (1, 2)], 1) {
        let (other, same) = train(ranks, micro_batch);
        assert!(distance(&other, &whole) < 1e-6, "{ranks} x {micro_batch}");
        assert_eq!(same, accuracy, "{ranks} x {micro_batch}");
    }
    let refused: [(&[&str], &str); 3] = [
        (&["train.effective_batch=5", "memory.micro_batch=2"], "in up to 3 micro-batches of 1 to 2"),
        (&["data.test_samples=1"], "samples of the test set: 1,"),
        (&["memory.micro_batch=1"], "a micro-batch of 1 is too small"),
    ];
    for &(sets, words) in thorough::cases(&refused, 2) {
        let output = sandbox.launch(1, "small", sets);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{sets:?}: {text}");
        assert!(text.contains(words), "{sets:?}: {text}");
        assert!(!sandbox.path("small").join("checkpoints").exists(), "{sets:?}");
    }
}

#[test]
fn pytorch_loads_checkpoints_strictly() {
    let Ok(python) = forks::pytorch() else { return };
    let cases = [("gpt", "lm", TEXTS), ("normed", "classify", IMAGES), ("half_frozen", "classify", IMAGES)];
    for &(function, task, data) in thorough::cases(&cases, 2) {
        let sandbox = imported(&python, function, task, data, "");
        let run = sandbox.train(1, "run", &["ema.decay=0.5"]);
        let exported = sandbox.path("weights.safetensors");
        let mut export = sandbox.dtrain(&["ckpt", "export"]);
        expect_exit_code(&finish(export.arg(run.0.latest()).arg(&exported), LIMIT), 0);
        for file in [run.0.latest().join(MODEL), exported] {
            let told = self::python(&python, &["reload.py", function, file.to_str().unwrap()]);
            let line = told.lines().find(|line| line.starts_with('{')).unwrap();
            let told: Value = serde_json::from_str(line).unwrap();
            let list = |key: &str| {
                told[key].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned())
            };
            let changed: Vec<String> = list("changed").collect();
            for name in list("names") {
                let is_constant =
                    name == "seen" || (function == "half_frozen" && name.starts_with("blocks.0."));
                assert_eq!(changed.contains(&name), !is_constant, "{function}: {name}");
            }
        }
    }
}

/// An operation of a user's library, in terms of PyTorch's: autograd and shapes follow from these.
const OPERATION: &str = r#"
#include <ATen/core/Tensor.h>
#include <torch/library.h>
at::Tensor leaky(const at::Tensor& x, double slope) { return x.where(x.gt(0), x.mul(slope)); }
TORCH_LIBRARY(dtrain_fixture, library) { library.def("leaky(Tensor x, float slope) -> Tensor", leaky); }
"#;

/// Compiles [`OPERATION`] against libtorch, as a user does.
fn compile_operation(library: &Path) {
    let source = library.with_extension("cpp");
    std::fs::write(&source, OPERATION).unwrap();
    let torch = PathBuf::from(std::env::var_os("LIBTORCH").expect("cargo sets LIBTORCH"));
    let mut compiler = Command::new(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    compiler.args(["-std=c++17", "-shared", "-fPIC", "-isystem"]).arg(torch.join("include"));
    compiler.arg(&source).arg("-L").arg(torch.join("lib"));
    compiler.args(["-ltorch_cpu", "-lc10", "-o"]).arg(library);
    expect_exit_code(&finish(&mut compiler, LIMIT), 0);
}

#[test]
fn operations_of_a_users_library_are_trained() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = sandbox("classify", IMAGES, "");
    let library = sandbox.path("libown.so");
    compile_operation(&library);
    import(&python, &sandbox, "own_operation", &["--library", library.to_str().unwrap()]);
    let named = format!("model.libraries=[{library:?}]");
    let one = tensors(&sandbox.train(1, "one", &[&named]), MODEL);
    let two = tensors(&sandbox.train(2, "two", &[&named, "memory.micro_batch=3"]), MODEL);
    assert!(distance(&two, &one) < 1e-6);
    let text = expect_exit_code(&sandbox.launch(1, "without", &[]), 2);
    assert!(text.contains("dtrain_fixture::leaky") && text.contains("model.libraries"), "{text}");
}

#[test]
fn models_that_do_not_fit_the_data_are_named_before_training() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = imported(&python, "vit", "classify", IMAGES, "");
    let file = std::fs::read(sandbox.path("model.pt2")).unwrap();
    std::fs::write(sandbox.path("short.pt2"), &file[..file.len() / 2]).unwrap();
    let short = format!("model.file={:?}", sandbox.path("short.pt2"));
    let cases = [
        ("data.image_size=32", "--image-size 32"),
        (short.as_str(), "short.pt2"),
        ("data.classes=9", "4"),
        ("model.inputs.x=image", "`image`"),
        ("model.output=logit", "`output`"),
        ("model.auxiliary.aux=0.5", "`output`"),
        ("task=segment", "for N samples"),
    ];
    for &(set, words) in thorough::cases(&cases, 2) {
        let output = sandbox.launch(1, "wrong", &[set]);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{set}: {text}");
        assert!(text.contains(words), "{set}: {text}");
        assert!(!sandbox.path("wrong").join("checkpoints").exists(), "{set}");
    }
}
