//! Compares whole trainings with PyTorch's DistributedDataParallel on two processes, from the same weights
//! and batches. `tests/parity/make_ddp.py` makes the reference; `tests/parity/README.md` describes it.

use std::path::Path;

use dtrain_tests::parity;
use dtrain_tests::reference;
use dtrain_tests::runs::{Run, Sandbox};
use dtrain_tests::trainings::{self, tensors};
use serde_json::Value;
use tch::Tensor;

/// Relative, at every step.
const TOLERANCE: f64 = 1e-4;

/// Runs the training of a reference with the engine on `ranks` ranks, in float32 or float64.
fn train(sandbox: &Sandbox, case: &str, reference: &Value, ranks: usize, double: bool) -> Run {
    let settings = &reference["settings"];
    let count = |key: &str| settings[key].as_u64().unwrap();
    let (steps, batch) = (count("steps"), count("batch"));
    let sets = vec![
        format!("custom.net={case:?}"),
        format!("custom.samples={}", steps * batch),
        format!("custom.double={double}"),
        format!("train.effective_batch={batch}"),
        format!("train.steps={steps}"),
        format!("optim.lr={}", settings["lr"]),
        format!("optim.eps={}", settings["eps"]),
        format!("optim.weight_decay={}", settings["weight_decay"]),
        format!("optim.schedule={{ name = \"constant\", warmup = \"{} steps\" }}", count("warmup")),
    ];
    let name = format!("{case}-{ranks}-{double}");
    let program = Path::new(env!("CARGO_BIN_EXE_training-rank"));
    trainings::train(sandbox, program, ranks, &[], &vec![(name.clone(), sets)]);
    sandbox.run(&name)
}

/// Returns the largest relative difference of the losses.
fn largest_difference(run: &Run, expected: &Value) -> f64 {
    let (got, expected) =
        (run.per_step("loss"), serde_json::from_value::<Vec<f64>>(expected["losses"].clone()).unwrap());
    assert_eq!(got.len(), expected.len());
    let differences = std::iter::zip(&got, &expected).map(|(got, expected)| (got / expected - 1.0).abs());
    differences.fold(0.0, f64::max)
}

fn sandbox() -> Sandbox {
    let recipe = "task = \"custom\"\n[custom]\nordered = true\n[data]\nworkers = 1\n[train]\nseed = 1\n[checkpoint]\n\
                  every = \"1000 steps\"\n[log]\nevery_steps = 1000\n";
    Sandbox::new(recipe)
}

fn case(name: &str) -> Value {
    let mut cases = reference::cases(&parity::reference("ddp.json")).into_iter();
    cases.find(|(found, _)| found == name).unwrap().1
}

/// Compares every loss of a training in float32 and, if rounding errors stay small, in float64.
fn compare(name: &str, ranks: &[usize], exact: f64) {
    let (sandbox, reference) = (sandbox(), case(name));
    for &ranks in ranks {
        let run = train(&sandbox, name, &reference, ranks, false);
        let single = largest_difference(&run, &reference["float32"]);
        assert!(single < TOLERANCE, "{name} on {ranks} ranks: {single:e}");
        let run = train(&sandbox, name, &reference, ranks, true);
        let double = largest_difference(&run, &reference["float64"]);
        assert!(double < exact, "{name} on {ranks} ranks in float64: {double:e}");
        println!(
            "{name} on {ranks} ranks: losses differ from DDP's by {single:.1e}, in float64 by {double:.1e}"
        );
        let losses = run.per_step("loss");
        assert!(losses[losses.len() - 1] < 0.7 * losses[0], "{losses:?}");
    }
}

#[test]
fn a_resnet_18_has_the_losses_of_ddp() {
    // BatchNorm uses each rank's 8 samples, on both sides.
    compare("resnet18", &[2], 1e-9);
}

#[test]
fn a_transformer_has_the_losses_of_ddp() {
    compare("gpt", &[1, 2, 3], 1e-9);
}

#[test]
fn unused_parameters_are_treated_as_by_ddp() {
    let (sandbox, reference) = (sandbox(), case("branches"));
    for ranks in [1, 2, 3] {
        let run = train(&sandbox, "branches", &reference, ranks, true);
        let losses = largest_difference(&run, &reference["float64"]);
        assert!(losses < 1e-10, "{ranks} ranks: {losses:e}");
        let weights = tensors(&run, "model.safetensors");
        let expected = reference["float64"]["weights"].as_object().unwrap();
        assert_eq!(weights.len(), expected.len());
        for (name, values) in expected {
            let values: Vec<f64> = serde_json::from_value(values.clone()).unwrap();
            let difference = weights[name].view([-1]) - Tensor::from_slice(&values);
            let difference = difference.abs().max().double_value(&[]);
            assert!(difference < 1e-10, "{name} on {ranks} ranks: {difference:e}");
        }
    }
}
