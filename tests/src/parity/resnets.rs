//! Compares the ResNets with torchvision's: the same weights and inputs must give the same logits, losses,
//! gradients and running statistics. `tests/parity/README.md` describes the references.

use super::gradients::{self, Tolerance};
use super::{about, device, double, file, reference, set_weights};
use crate::formula;
use dtrain_test_kit::assert_values;
use dtrain_worker::models::{Architecture, Classifier, Registry, Role, TensorFile, build};
use tch::{Kind, Reduction, Tensor};

const ARCHITECTURES: [Architecture; 2] = [Architecture::ResNet18, Architecture::ResNet34];
const LOGIT_TOLERANCE: f64 = 1e-4;

/// Returns torchvision's name.
pub(super) fn name(arch: Architecture) -> String {
    format!("{arch:?}").to_lowercase()
}

/// The network with the formula's weights, and the file of torchvision's results for them.
struct Case {
    registry: Registry,
    model: Box<dyn Classifier>,
    expected: TensorFile,
    about: serde_json::Value,
    kind: Kind,
}

impl Case {
    fn new(arch: Architecture, kind: Kind) -> Self {
        let about = about(&name(arch));
        let classes = about["classes"].as_u64().unwrap() as usize;
        let mut registry = Registry::new(device());
        registry.kind = kind;
        let model = build(arch, 3, classes, &mut registry).unwrap();
        set_weights(&registry);
        Self { registry, model, expected: TensorFile::open(&file(&name(arch))).unwrap(), about, kind }
    }

    fn sizes(&self) -> Vec<(usize, usize)> {
        let sizes = self.about["images"].as_object().unwrap();
        sizes.iter().map(|(size, count)| (size.parse().unwrap(), count.as_u64().unwrap() as usize)).collect()
    }

    fn read(&self, size: usize, name: &str) -> Tensor {
        self.expected.read(&format!("{size}.{name}")).unwrap()
    }

    fn input(&self, size: usize, count: usize) -> (Tensor, Tensor) {
        let side = size as i64;
        let images = Tensor::from_slice(&formula::images(size, count)).view([count as i64, 3, side, side]);
        let labels = formula::labels(size, self.about["classes"].as_u64().unwrap(), count);
        (images.to_kind(self.kind).to_device(device()), Tensor::from_slice(&labels).to_device(device()))
    }
}

fn loss(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.cross_entropy_loss::<Tensor>(labels, None, Reduction::Mean, -100, 0.0)
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (double(a) - double(b)).abs().max().double_value(&[])
}

/// Compares the formula with the numbers that Python wrote into the optimizers' file, bit by bit.
///
/// # Panics
/// If they differ.
pub fn the_formula_is_the_same_in_both_languages() {
    let file = TensorFile::open(&reference("optimizers.safetensors")).unwrap();
    let (parameter, gradients) = (file.read("parameter").unwrap(), file.read("gradients").unwrap());
    let (steps, elements) = gradients.size2().unwrap();
    let start = formula::unit("optimizer.parameter", elements as usize);
    assert!(parameter.equal(&Tensor::from_slice(&start)));
    for step in 0..steps {
        let expected = formula::gradient("optimizer.gradient", step as usize, elements as usize);
        assert!(gradients.get(step).equal(&Tensor::from_slice(&expected)), "step {step}");
    }
}

/// Compares names, shapes, types and order with torchvision's.
///
/// # Panics
/// If they differ.
pub fn names_shapes_types_and_order_are_torchvisions() {
    for arch in ARCHITECTURES {
        let text = std::fs::read_to_string(reference(&format!("{}.json", name(arch)))).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut registry = Registry::new(device());
        build(arch, 3, expected["classes"].as_u64().unwrap() as usize, &mut registry).unwrap();

        let rows: Vec<(String, Vec<i64>, String)> =
            serde_json::from_value(expected["state"].clone()).unwrap();
        assert_eq!(registry.state().len(), rows.len(), "{arch:?}");
        for (entry, (name, shape, dtype)) in registry.state().iter().zip(&rows) {
            assert_eq!(entry.name(), name, "{arch:?}");
            assert_eq!(&entry.tensor().size(), shape, "{arch:?} {name}");
            let kind = if dtype == "int64" { Kind::Int64 } else { Kind::Float };
            assert_eq!(entry.tensor().kind(), kind, "{arch:?} {name}");
        }
        let tensors = registry.state().iter().filter(|entry| entry.role() == Role::Parameter).count() as u64;
        assert_eq!(Some(tensors), expected["parameter_tensors"].as_u64(), "{arch:?}");
        assert_eq!(Some(registry.parameter_count() as u64), expected["parameters"].as_u64(), "{arch:?}");
    }
}

/// Compares the logits of an evaluation with torchvision's.
///
/// # Panics
/// If they differ too much.
pub fn evaluation_gives_torchvisions_logits() {
    for arch in ARCHITECTURES {
        let case = Case::new(arch, Kind::Float);
        for (size, count) in case.sizes() {
            let (images, labels) = case.input(size, count);
            let logits = tch::no_grad(|| case.model.forward(&images, false)).unwrap();
            let difference = largest_difference(&logits, &case.read(size, "eval.logits"));
            println!("{arch:?} {size} evaluation: logits differ by at most {difference:.1e}");
            assert_values!(difference < LOGIT_TOLERANCE, "{arch:?} at {size}: {difference:e}");
            let difference = largest_difference(&loss(&logits, &labels), &case.read(size, "eval.loss"));
            assert_values!(difference < LOGIT_TOLERANCE, "{arch:?} at {size}, loss: {difference:e}");
        }
    }
}

/// Compares logits, gradients and statistics of a training pass with torchvision's.
///
/// # Panics
/// If they differ too much.
pub fn training_gives_torchvisions_logits_gradients_and_statistics() {
    for (arch, kind) in ARCHITECTURES.into_iter().flat_map(|arch| [(arch, Kind::Double), (arch, Kind::Float)])
    {
        for (size, count) in Case::new(arch, kind).sizes() {
            // New weights: the pass above has changed the running statistics.
            let case = Case::new(arch, kind);
            let label = format!("{arch:?} at {size} in {kind:?}");
            let (images, labels) = case.input(size, count);
            let logits = case.model.forward(&images, true).unwrap();
            let difference = largest_difference(&logits, &case.read(size, "train.logits"));
            assert_values!(difference < LOGIT_TOLERANCE, "{label}: {difference:e}");
            let loss = loss(&logits, &labels);
            let loss_difference = largest_difference(&loss, &case.read(size, "train.loss"));
            assert_values!(loss_difference < LOGIT_TOLERANCE, "{label}, loss: {loss_difference:e}");

            // In float32 a rounding error changes the sign before a ReLU, and gradients by up to 2%.
            if kind == Kind::Double {
                loss.backward();
                let (prefix, tolerance) = (format!("{size}."), Tolerance::of(kind));
                let worst = gradients::compare(&case.registry, &case.expected, &prefix, tolerance, &label);
                println!("{label}: gradients differ by at most {worst:.1e}");
            }
            compare_statistics(&case, size);
        }
    }
}

fn compare_statistics(case: &Case, size: usize) {
    let mut compared = 0;
    for entry in case.registry.buffers() {
        let key = format!("{size}.state.{}", entry.name());
        if case.expected.info(&key).is_some() {
            let difference = largest_difference(entry.tensor(), &case.expected.read(&key).unwrap());
            assert_values!(difference < 1e-4, "{} at {size}: {difference:e}", entry.name());
            compared += 1;
        }
    }
    assert_eq!(compared, 9, "running statistics in the reference");
}
