//! Adapters of imported programs beside PEFT's: tests/parity/reference/lora, made by make_lora.py.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use dtrain_common::manifest::Manifest;
use dtrain_test_kit::forks;
use dtrain_test_kit::formula::words;
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::runs::{Sandbox, assert_close};
use dtrain_tests::trainings::tensors;
use dtrain_worker::models::TensorFile;
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::bad_input::refused_by;
use crate::exported::import;
use crate::import::LIMIT;

const MODEL: &str = "model.safetensors";
/// What PEFT puts before the names of a model.
const PREFIX: &str = "base_model.model.";

/// A training of ten steps, each of all samples.
const TRAINING: &str = r#"
[train]
effective_batch = 8
steps = 10
[optim]
name = "adamw"
lr = 0.002
weight_decay = 0.05
decay = "all"
[checkpoint]
every = "5 steps"
[log]
every_steps = 1
"#;

const VIT: &str = r#"
task = "classify"
[data]
root = "images"
image_size = 16
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
augment = "none"
[model.lora]
match = ["patch.weight", "*c_attn.weight", "*c_proj.weight", "*.fc.weight"]
rank = 4
alpha = 6
train = ["head.*"]
"#;

pub(crate) const GPT: &str = r#"
task = "lm"
[data]
kind = "tokens"
root = "tokens"
test = "val"
vocabulary = 32
augment = "none"
[model.lora]
match = ["*c_attn.weight", "*.out.weight", "lm_head.weight"]
rank = 2
alpha = 4
"#;

/// The tensors of a reference file whose names begin so, by the rest of their names.
fn reference(case: &str, part: &str) -> BTreeMap<String, Tensor> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("parity/reference/lora");
    let file = TensorFile::open(&folder.join(format!("{case}.safetensors"))).unwrap();
    let names = file.names();
    let own = names.iter().filter_map(|name| Some((name, name.strip_prefix(part)?)));
    own.map(|(name, rest)| (rest.trim_start_matches(PREFIX).to_owned(), file.read(name).unwrap())).collect()
}

/// Returns a sandbox with the imported model, the data and the weights of a case.
pub(crate) fn sandbox(python: &Path, case: &str, recipe: &str) -> Sandbox {
    let sandbox = Sandbox::new(&format!("{recipe}{TRAINING}"));
    import(python, &sandbox, &format!("adapted.py:{case}"), &[]);
    let mut weights = reference(case, "base.");
    weights.extend(reference(case, "start."));
    let weights: Vec<(&str, &Tensor)> =
        weights.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    Tensor::write_safetensors(&weights, sandbox.path("weights.safetensors")).unwrap();
    match case {
        "vit" => images(&sandbox),
        _ => tokens(&sandbox),
    }
    sandbox
}

fn images(sandbox: &Sandbox) {
    let pixels = words("lora.images", 8 * 16 * 16 * 3);
    for (sample, pixels) in pixels.chunks(16 * 16 * 3).enumerate() {
        let bytes = pixels.iter().map(|word| (word % 256) as u8).collect();
        for set in ["train", "test"] {
            let folder = sandbox.path(&format!("images/{set}/class-{}", sample % 4));
            fs::create_dir_all(&folder).unwrap();
            let image = image::RgbImage::from_vec(16, 16, Vec::clone(&bytes)).unwrap();
            image.save(folder.join(format!("{sample}.png"))).unwrap();
        }
    }
}

fn tokens(sandbox: &Sandbox) {
    let stream = words("lora.tokens", 8 * 12 + 1);
    let bytes: Vec<u8> = stream.iter().flat_map(|word| ((word % 32) as u16).to_le_bytes()).collect();
    fs::create_dir(sandbox.path("tokens")).unwrap();
    for name in ["train.bin", "val.bin"] {
        fs::write(sandbox.path("tokens").join(name), &bytes).unwrap();
    }
}

pub(crate) const FILES: [&str; 2] = ["model.file=model.pt2", "model.weights=weights.safetensors"];

/// Trains a case in two cuts, and compares losses and adapters with PEFT's.
fn equals_peft(case: &str, recipe: &str) -> Option<Sandbox> {
    let python = forks::pytorch().ok()?;
    let sandbox = sandbox(&python, case, recipe);
    let losses =
        Vec::<f64>::try_from(reference(case, "").remove("losses").unwrap().to_kind(Kind::Double)).unwrap();
    let expected = reference(case, "end.");
    for (ranks, micro_batch) in [(1, 8), (2, 3)] {
        let name = format!("run-{ranks}");
        let micro_batch = format!("memory.micro_batch={micro_batch}");
        let run = sandbox.train(ranks, &name, &[&FILES[..], &[&micro_batch]].concat());
        assert_close(&run.per_step("loss"), &losses, 1e-5);
        let own = tensors(&run, MODEL);
        // Only adapters, and the head that is trained.
        assert!(own.keys().eq(expected.keys()), "{:?} and {:?}", own.keys(), expected.keys());
        for (name, tensor) in &expected {
            let difference = (&own[name] - tensor).abs().max().double_value(&[]);
            assert!(difference < 1e-6, "{name}: {difference} on {ranks} ranks");
        }
    }
    Some(sandbox)
}

/// Returns the name of the adapter's A of a weight.
fn a_of(weight: &str) -> String {
    format!("{}.lora_A.weight", weight.trim_end_matches(".weight"))
}

/// Exports the whole model and the adapters of a run, and compares them with PEFT's.
fn exports_equal_pefts(sandbox: &Sandbox, case: &str) {
    let export = |out: &str, more: &[&str]| {
        let mut command = sandbox.dtrain(&["ckpt", "export", "run-1", out]);
        command.args(more);
        finish(&mut command, LIMIT)
    };
    expect_exit_code(&export("merged.safetensors", &[]), 0);
    let read = |path: &str| TensorFile::open(&sandbox.path(path)).unwrap();
    let (merged, expected) = (read("merged.safetensors"), reference(case, "merged."));
    assert!(merged.names().iter().eq(expected.keys()), "{:?}", merged.names());
    for (name, tensor) in &expected {
        let difference = (merged.read(name).unwrap() - tensor).abs().max().double_value(&[]);
        assert!(difference < 1e-6, "{name}: {difference}");
    }
    expect_exit_code(&export("adapters", &["--adapters"]), 0);
    let own = read("adapters/adapter_model.safetensors");
    let names: Vec<String> =
        reference(case, "end.").into_keys().map(|name| format!("{PREFIX}{name}")).collect();
    assert_eq!(own.names(), names);
    let config = fs::read_to_string(sandbox.path("adapters/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!((&config["peft_type"], &config["fan_in_fan_out"]), (&"LORA".into(), &(case == "gpt").into()));
    let (numbers, saved) = match case {
        "vit" => (json!([4, 6.0]), json!(["head"])),
        _ => (json!([2, 4.0]), Value::Null),
    };
    assert_eq!((json!([config["r"], config["lora_alpha"]]), &config["modules_to_save"]), (numbers, &saved));
    let mut layers: Vec<String> = serde_json::from_value(config["target_modules"].clone()).unwrap();
    layers.sort_unstable();
    let adapted = expected.keys().filter(|name| reference(case, "end.").contains_key(&a_of(name)));
    let mut expected: Vec<&str> = adapted.filter_map(|name| name.strip_suffix(".weight")).collect();
    expected.sort_unstable();
    assert_eq!(layers, expected);
    assert!(expect_exit_code(&export("merged.safetensors", &[]), 2).contains("already exists"));
    assert!(
        expect_exit_code(&export("ema.safetensors", &["--weights", "ema"]), 2).contains("no moving average")
    );
    assert!(expect_exit_code(&export("adapters", &["--adapters"]), 2).contains("--force"));
}

#[test]
fn adapters_of_a_vision_transformer_equal_pefts() {
    let Some(sandbox) = equals_peft("vit", VIT) else { return };
    exports_equal_pefts(&sandbox, "vit");
    // A resumed run has the base of its files.
    let half = [&FILES[..], &["train.steps=5"]].concat();
    sandbox.train(2, "resumed", &half);
    sandbox.train(1, "resumed", &FILES);
    let (resumed, whole) = (tensors(&sandbox.run("resumed"), MODEL), tensors(&sandbox.run("run-1"), MODEL));
    for (name, tensor) in &whole {
        let difference = (&resumed[name] - tensor).abs().max().double_value(&[]);
        assert!(difference < 1e-6, "{name}: {difference}");
    }
    let base = Manifest::read(&sandbox.run("run-1").0.latest()).unwrap().base.unwrap();
    assert_eq!((base.adapted.len(), base.transposed.len()), (7, 0));
    // Weights of another base.
    let mut weights = reference("vit", "base.");
    weights.extend(reference("vit", "start."));
    weights.insert("position".to_owned(), &weights["position"] + 1.0);
    let weights: Vec<(&str, &Tensor)> =
        weights.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    Tensor::write_safetensors(&weights, sandbox.path("others.safetensors")).unwrap();
    let sets = ["model.file=model.pt2", "model.weights=others.safetensors", "train.steps=12"];
    refused_by(&mut sandbox.command(1, "resumed", &sets, &[]), &["not those of its run"]);
}

#[test]
fn adapters_of_a_gpt_with_transposed_weights_equal_pefts() {
    let Some(sandbox) = equals_peft("gpt", GPT) else { return };
    exports_equal_pefts(&sandbox, "gpt");
    let base = Manifest::read(&sandbox.run("run-1").0.latest()).unwrap().base.unwrap();
    assert_eq!(base.transposed.len(), 4, "{base:?}");
    for (sets, words) in [
        ("model.lora.match=[\"wte.weight\"]", "matches no weight of a linear layer or convolution"),
        ("model.lora.match=[\"nothing\"]", "matches no parameter"),
        ("model.lora.train=[\"nothing\"]", "model.lora.train"),
        ("model.lora.rank=0", "model.lora.rank"),
        ("model.lora.dropout=1", "model.lora.dropout"),
    ] {
        let sets = [&FILES[..], &[sets]].concat();
        let _ = fs::remove_dir_all(sandbox.path("refused"));
        refused_by(&mut sandbox.command(1, "refused", &sets, &[]), &[words]);
    }
    let dropout = [&FILES[..], &["model.lora.dropout=0.3"]].concat();
    let one = sandbox.train(1, "dropped-1", &dropout);
    let two = sandbox.train(2, "dropped-2", &[&dropout[..], &["memory.micro_batch=1"]].concat());
    assert_close(&one.per_step("loss"), &two.per_step("loss"), 1e-6);
    assert!((one.per_step("loss")[9] - sandbox.run("run-1").per_step("loss")[9]).abs() > 1e-4);
}

/// Frozen weights in fewer bytes: about the loss of float32, equal in every cut, and the memory of the plan.
#[test]
fn weights_in_fewer_bytes_train_as_those_in_float32() {
    let Ok(python) = forks::pytorch() else { return };
    let sandbox = sandbox(&python, "gpt", GPT);
    let plain = sandbox.train(1, "plain", &FILES);
    for (form, tolerance) in [("int8", 1e-2), ("bf16", 1e-2), ("fp16", 1e-3)] {
        let frozen = format!(
            "model.frozen.{form}=[\"*c_attn.weight\", \"*fc.weight\", \"wte.weight\", \"lm_head.weight\"]"
        );
        let sets = [&FILES[..], &[&frozen]].concat();
        let one = sandbox.train(1, form, &sets);
        let two = sandbox.train(2, &format!("{form}-2"), &[&sets[..], &["memory.micro_batch=1"]].concat());
        assert_close(&one.per_step("loss"), &two.per_step("loss"), 1e-6);
        for (own, plain) in std::iter::zip(one.per_step("loss"), plain.per_step("loss")) {
            assert!((own / plain - 1.0).abs() < tolerance && own != plain, "{form}: {own} and {plain}");
        }
    }
    for (set, words) in [
        ("model.frozen.int8=[\"*.bias\"]", "matches no weight of a linear layer or convolution"),
        (
            "model.frozen.int8=[\"wpe.weight\", \"ln_f.*\"]",
            "matches no weight of a linear layer or convolution",
        ),
    ] {
        let sets = [&FILES[..], &[set]].concat();
        let _ = fs::remove_dir_all(sandbox.path("refused"));
        refused_by(&mut sandbox.command(1, "refused", &sets, &[]), &[words]);
    }
    let both = ["model.frozen.int8=[\"lm_head.weight\"]", "model.lora.train=[\"lm_head.weight\"]"];
    let _ = fs::remove_dir_all(sandbox.path("refused"));
    let sets = [&FILES[..], &["model.lora.match=[\"*.out.weight\"]"], &both[..]].concat();
    refused_by(&mut sandbox.command(1, "refused", &sets, &[]), &["fewer bytes"]);
}
