//! TorchScript modules: ten steps of SGD compared with PyTorch, and whole runs with the launcher.
//! `tests/parity/README.md` describes the modules and the references.

use std::path::PathBuf;

use dtrain_common::recipe::Recipe;
use dtrain_tests::formula;
use dtrain_tests::process::output_text;
use dtrain_tests::runs::{Sandbox, assert_close};
use dtrain_worker::data::{self, Column};
use dtrain_worker::models::{Registry, TensorFile};
use dtrain_worker::optim::{GroupOptions, Optimizer, Rule};
use dtrain_worker::state::Table;
use dtrain_worker::tasks::{Batch, BuildContext, BuildTask, Mode, Task, TorchScript};
use serde_json::Value;
use tch::{Device, Kind};

fn reference(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("parity/reference").join(name)
}

pub(crate) fn recipe(file: &str, loss: &str) -> String {
    format!(
        r#"
task = "torchscript"
[data]
kind = "generated"
classes = 4
train_samples = 32
test_samples = 9
image_size = 16
workers = 1
[model]
file = {:?}
loss = "{loss}"
[train]
effective_batch = 8
epochs = 2
seed = 3
[optim]
name = "sgd"
lr = 0.05
momentum = 0.9
[memory]
micro_batch = 4
[log]
every_steps = 1
"#,
        reference(file)
    )
}

#[test]
fn ten_steps_equal_pytorchs() {
    let text = std::fs::read_to_string(reference("torchscript.json")).unwrap();
    let about: Value = serde_json::from_str(&text).unwrap();
    let setting = |key: &str| about["sgd"][key].as_f64().unwrap();
    let samples = about["samples"].as_u64().unwrap() as usize;
    for (case, file, loss) in [
        ("net", "net.pt", "cross-entropy"),
        ("net", "net-from-cuda.pt", "cross-entropy"),
        ("net-mse", "net.pt", "mse"),
        ("with-loss", "with-loss.pt", "module"),
    ] {
        let recipe = Recipe::parse("test", &recipe(file, loss), &[]).unwrap();
        let mut registry = Registry::new(Device::Cpu);
        let context = BuildContext { registry: &mut registry, local_ranks: 1 };
        let task = TorchScript::build(&recipe, None, context).unwrap();
        let leaves: Vec<_> = registry.parameters().collect();
        let mut table = Table::of(leaves.iter().map(|entry| (entry.name(), entry.tensor()))).unwrap();
        let rule = Rule::Sgd { momentum: setting("momentum"), nesterov: false };
        let groups = vec![GroupOptions::plain(setting("weight_decay"))];
        let mut optimizer = Optimizer::new(rule, groups, &mut table).unwrap();
        let batch = data::Batch {
            fields: task.train_set().fields().into(),
            columns: vec![
                Column::F32(formula::images(16, samples)),
                Column::I64(formula::labels(16, 4, samples)),
            ],
            weights: vec![1.0; samples],
            indices: (0..samples as u32).collect(),
            bad: Vec::new(),
        };
        let batch = Batch::new(&batch, Device::Cpu).unwrap();

        let expected = &about["cases"][case];
        let used = vec![true; leaves.len()];
        for (step, wanted) in expected["losses"].as_array().unwrap().iter().enumerate() {
            table.zero_grad().unwrap();
            let mean = task.loss(&batch, Mode::Train).unwrap().sum / samples as f64;
            mean.backward();
            optimizer.step(&mut table, setting("lr"), &used, None).unwrap();
            let (got, wanted) = (mean.double_value(&[]), wanted.as_f64().unwrap());
            assert!((got - wanted).abs() < 1e-5, "{file} {loss}, step {step}: {got}, {wanted}");
        }
        for (name, wanted) in expected["statistics"].as_object().unwrap() {
            let got = registry.get(name).unwrap().tensor().mean(Kind::Double).double_value(&[]);
            let wanted = wanted.as_f64().unwrap();
            assert!((got - wanted).abs() < 1e-5, "{file} {name}: {got}, {wanted}");
        }
    }
}

#[test]
fn a_module_learns_equally_on_one_and_two_ranks() {
    for (file, loss) in [("net.pt", "cross-entropy"), ("with-loss.pt", "module")] {
        let sandbox = Sandbox::new(&recipe(file, loss));
        let one = sandbox.train(1, "one", &["train.epochs=8"]);
        let two = sandbox.train(2, "two", &["train.epochs=8"]);
        let losses = two.per_step("loss");
        assert!(losses[28..].iter().sum::<f64>() < 0.8 * losses[..4].iter().sum::<f64>(), "{losses:?}");
        assert_close(&one.per_step("loss"), &losses, 1e-5);
        assert_eq!(two.evaluations().last().unwrap()["samples"].as_u64(), Some(9));
        let figures = two.result().final_metrics;
        assert_eq!(figures.contains_key("accuracy"), loss == "cross-entropy", "{figures:?}");
        // The names are those of the PyTorch model.
        let checkpoint = TensorFile::open(&two.0.latest().join("model.safetensors")).unwrap();
        let prefix = if loss == "module" { "net." } else { "" };
        for name in ["conv1.weight", "bn1.running_mean", "bn1.num_batches_tracked", "fc.bias"] {
            let tensor = checkpoint.read(&format!("{prefix}{name}")).unwrap();
            assert!(tensor.isfinite().all().int64_value(&[]) == 1, "{name}");
        }
    }
}

#[test]
fn a_mode_independent_trace_is_trained() {
    let sandbox = Sandbox::new(&recipe("traced-plain.pt", "cross-entropy"));
    let one = sandbox.train(1, "one", &[]);
    let two = sandbox.train(2, "two", &[]);
    assert_close(&one.per_step("loss"), &two.per_step("loss"), 1e-5);
    let module = tch::CModule::load(reference("traced-plain.pt")).unwrap();
    let trained = TensorFile::open(&two.0.latest().join("model.safetensors")).unwrap();
    for (name, tensor) in module.named_parameters().unwrap() {
        // A normalisation follows this bias and cancels it: it may stay unchanged.
        if name != "conv1.bias" {
            assert!(!trained.read(&name).unwrap().equal(&tensor), "{name}");
        }
    }
}

#[test]
fn a_resumed_module_ends_in_the_same_weights() {
    let sandbox = Sandbox::new(&recipe("net.pt", "cross-entropy"));
    let whole = sandbox.train(2, "whole", &["train.steps=6"]);
    sandbox.train(2, "cut", &["train.steps=3"]);
    let resumed = sandbox.train(2, "cut", &["train.steps=6"]);
    assert_eq!(whole.per_step("loss"), resumed.per_step("loss"));
    assert!(whole.weights() == resumed.weights(), "the weights differ");
}

#[test]
fn mixed_precision_groups_and_frozen_parameters_work_on_modules() {
    let sandbox = Sandbox::new(&recipe("net.pt", "cross-entropy"));
    let exact = sandbox.train(2, "exact", &["train.epochs=4"]);
    let short = sandbox.train(2, "short", &["train.epochs=4", "precision.amp=\"bf16\""]);
    let (exact, short) = (exact.per_step("loss"), short.per_step("loss"));
    assert!(exact != short, "bf16 changes nothing");
    assert_close(&exact, &short, 0.05);

    let sets = ["model.freeze=[\"conv*\"]", "optim.group=[{match=\"fc.*\", lr_factor=0.5}]"];
    let run = sandbox.train(2, "frozen", &sets);
    let read = |name: &str| {
        let file = TensorFile::open(&run.0.latest().join("model.safetensors")).unwrap();
        file.read(name).unwrap()
    };
    let module = tch::CModule::load(reference("net.pt")).unwrap();
    for (name, tensor) in module.named_parameters().unwrap() {
        assert_eq!(read(&name).equal(&tensor), name.starts_with("conv"), "{name}");
    }
}

#[test]
fn files_that_are_no_modules_are_errors() {
    let sandbox = Sandbox::new(&recipe("net.pt", "cross-entropy"));
    std::fs::write(sandbox.path("text.pt"), "not a module").unwrap();
    std::fs::write(sandbox.path("pointer.pt"), "version https://git-lfs.github.com/spec/v1\n").unwrap();
    std::fs::write(sandbox.path("w.pt"), b"PK\x03\x04 archive/data.pkl").unwrap();
    let plain = |name: &str| reference(name).to_str().unwrap().to_owned();
    for (file, words) in [
        ("text.pt".to_owned(), ["text.pt", "torch.jit.script(model).save"]),
        ("pointer.pt".to_owned(), ["the file is a Git LFS pointer", "lfs pull --include pointer.pt"]),
        ("w.pt".to_owned(), ["the file is a file of torch.save", "torch.jit.script(model).save"]),
        ("absent.pt".to_owned(), ["model.file", "does not exist"]),
        (plain("no-parameters.pt"), ["no-parameters.pt", "has no parameters"]),
        (plain("with-loss.pt"), ["with-loss.pt", "model.loss"]),
        (plain("traced-evaluation.pt"), ["torch.jit.trace", "torch.jit.script(model).save"]),
        (plain("autoencoder.pt"), ["autoencoder.pt", "N x K"]),
    ] {
        let output = sandbox.launch(2, "run", &[&format!("model.file={file:?}")]);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{words:?} in: {text}");
        let errors = text.lines().filter(|line| line.contains("error:")).count();
        assert_eq!(errors, 1, "expected one error line: {text}");
    }
}
