//! Compares whole trainings with PyTorch's DistributedDataParallel on two processes, from the same weights
//! and batches. `tests/parity/make_ddp.py` makes the reference; `tests/parity/README.md` describes it.

use dtrain_test_kit::thorough;
use dtrain_tests::parity;
use dtrain_tests::reference;
use dtrain_tests::runs::{Run, Sandbox};
use dtrain_tests::trainings::{self, tensors};
use serde_json::Value;
use tch::Tensor;

/// Relative, at every step: in float32 and in float64.
const TOLERANCES: [f64; 2] = [1e-4, 1e-9];

/// Runs the first steps of a reference's training with the engine on `ranks` ranks. Each of `wanted` is whether in float64,
/// and the number of steps.
fn train(sandbox: &Sandbox, case: &str, reference: &Value, ranks: usize, wanted: &[(bool, u64)]) -> Vec<Run> {
    let settings = &reference["settings"];
    let count = |key: &str| settings[key].as_u64().unwrap();
    let batch = count("batch");
    let name = |double: bool| format!("{case}-{ranks}-{double}");
    let sets = |double: bool, steps: u64| {
        vec![
            format!("custom.net={case:?}"),
            format!("custom.samples={}", steps * batch),
            format!("custom.double={double}"),
            format!("train.effective_batch={batch}"),
            format!("train.steps={steps}"),
            format!("optim.lr={}", settings["lr"]),
            format!("optim.eps={}", settings["eps"]),
            format!("optim.weight_decay={}", settings["weight_decay"]),
            format!("optim.schedule={{ name = \"constant\", warmup = \"{} steps\" }}", count("warmup")),
        ]
    };
    let list = wanted.iter().map(|&(double, steps)| (name(double), sets(double, steps))).collect();
    trainings::train(sandbox, ranks, &[], &list);
    wanted.iter().map(|&(double, _)| sandbox.run(&name(double))).collect()
}

/// Returns the largest relative difference of the losses of the first `steps` steps.
fn largest_difference(run: &Run, expected: &Value, steps: u64) -> f64 {
    let (got, expected) =
        (run.per_step("loss"), serde_json::from_value::<Vec<f64>>(expected["losses"].clone()).unwrap());
    assert_eq!(got.len() as u64, steps);
    assert!(got.len() <= expected.len());
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

/// Compares the losses of this many steps in float32 and in float64. Those in float32 fall.
fn compare(name: &str, ranks: &[usize], steps: [u64; 2]) {
    let (sandbox, reference) = (sandbox(), case(name));
    for &ranks in ranks {
        let runs = train(&sandbox, name, &reference, ranks, &[(false, steps[0]), (true, steps[1])]);
        for (index, kind) in ["float32", "float64"].into_iter().enumerate() {
            let difference = largest_difference(&runs[index], &reference[kind], steps[index]);
            assert!(difference < TOLERANCES[index], "{name} on {ranks} ranks in {kind}: {difference:e}");
            println!("{name} on {ranks} ranks in {kind}: losses differ from DDP's by {difference:.1e}");
        }
        let losses = runs[0].per_step("loss");
        assert!(losses[losses.len() - 1] < 0.7 * losses[0], "{losses:?}");
    }
}

#[test]
fn a_resnet_18_has_the_losses_of_ddp() {
    // BatchNorm uses each rank's 8 samples, on both sides.
    // The warm-up takes 10 steps.
    compare("resnet18", &[2], if thorough::is_wanted() { [30, 30] } else { [12, 10] });
}

#[test]
fn a_transformer_has_the_losses_of_ddp() {
    compare("gpt", thorough::cases(&[3, 1, 2], 1), [30, 30]);
}

#[test]
fn unused_parameters_are_treated_as_by_ddp() {
    let (sandbox, reference) = (sandbox(), case("branches"));
    for &ranks in thorough::cases(&[3, 1, 2], 1) {
        let run = &train(&sandbox, "branches", &reference, ranks, &[(true, 20)])[0];
        let losses = largest_difference(run, &reference["float64"], 20);
        assert!(losses < 1e-10, "{ranks} ranks: {losses:e}");
        let weights = tensors(run, "model.safetensors");
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
