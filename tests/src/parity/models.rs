//! Compares vision transformer, GPT, U-Net and bottleneck ResNets with PyTorch: equal weights and
//! inputs must give equal logits, losses, gradients and statistics, in float64 and, if the network allows, in
//! float32. `tests/parity/make_models.py` makes the references; `tests/parity/README.md` describes them.

use super::gradients::{self, Tolerance};
use super::resnets::name;
use super::{about, device, double, file, relative_l2, set_weights};
use crate::formula;
use dtrain_test_kit::assert_values;
use dtrain_worker::models::{
    Architecture, Gpt, GptConfig, ModelError, Registry, TensorFile, UnetConfig, VitConfig, build, build_unet,
};
use serde_json::Value;
use tch::{Kind, Reduction, Tensor};

const CASES: [&str; 4] = ["vit", "gpt", "unet", "resnet50"];

type Forward = Box<dyn Fn(&Tensor, bool) -> Result<Tensor, ModelError>>;

struct Case {
    name: &'static str,
    expected: TensorFile,
    about: Value,
    registry: Registry,
    forward: Forward,
    kind: Kind,
    tolerance: Tolerance,
}

/// Builds the network with the reference's settings.
fn network(name: &str, settings: &Value, registry: &mut Registry) -> Forward {
    let get = |key: &str| settings[key].as_u64().unwrap() as usize;
    match name {
        "vit" => {
            let config = VitConfig {
                image_size: get("image_size"),
                patch: get("patch"),
                width: get("width"),
                depth: get("depth"),
                heads: get("heads"),
            };
            let arch = Architecture::Vit(config);
            let model = build(arch, get("channels"), get("classes"), registry).unwrap();
            Box::new(move |x, train| model.forward(x, train))
        }
        "gpt" => {
            let config = GptConfig {
                vocabulary: get("vocabulary"),
                context: get("context"),
                width: get("width"),
                depth: get("depth"),
                heads: get("heads"),
            };
            let model = Gpt::new(config, registry).unwrap();
            Box::new(move |x, _| model.forward(x, false))
        }
        "unet" => {
            let config = UnetConfig {
                channels: get("channels"),
                classes: get("classes"),
                width: get("width"),
                depth: get("depth"),
            };
            let model = build_unet(config, registry).unwrap();
            Box::new(move |x, train| model.forward(x, train))
        }
        "resnet50" => {
            let model = build(Architecture::ResNet50, 3, get("classes"), registry).unwrap();
            Box::new(move |x, train| model.forward(x, train))
        }
        other => panic!("{other}"),
    }
}

impl Case {
    fn new(name: &'static str, kind: Kind, channels_last: bool) -> Self {
        let about = about(name);
        let mut registry = Registry::new(device());
        registry.kind = kind;
        registry.channels_last = channels_last;
        let forward = network(name, &about["settings"], &mut registry);
        set_weights(&registry);
        let (expected, tolerance) = (TensorFile::open(&file(name)).unwrap(), Tolerance::of(kind));
        Self { name, expected, about, registry, forward, kind, tolerance }
    }

    /// Returns every network in every dtype that its reference allows, in both memory formats.
    fn all() -> impl Iterator<Item = Self> {
        CASES.into_iter().flat_map(|name| {
            let types: Vec<String> = serde_json::from_value(about(name)["types"].clone()).unwrap();
            let runs = types.into_iter().flat_map(|kind| {
                let kind = if kind == "float32" { Kind::Float } else { Kind::Double };
                [(kind, false), (kind, true)]
            });
            runs.map(move |(kind, last)| Self::new(name, kind, last))
        })
    }

    /// Returns the input and the target class of each image, pixel or token.
    fn data(&self) -> (Tensor, Tensor) {
        let shape: Vec<i64> = serde_json::from_value(self.about["input"].clone()).unwrap();
        let classes = self.about["classes"].as_u64().unwrap();
        let count = |shape: &[i64]| shape.iter().product::<i64>() as usize;
        let draw = |what: &str, shape: &[i64]| {
            let values: Vec<i64> = formula::words(&format!("{}.{what}", self.name), count(shape))
                .into_iter()
                .map(|word| (word % classes) as i64)
                .collect();
            Tensor::from_slice(&values).view(shape)
        };
        let input = if self.name == "gpt" {
            draw("input", &shape)
        } else {
            let values: Vec<f32> = formula::unit(&format!("{}.input", self.name), count(&shape))
                .into_iter()
                .map(|value| (1.5 * value) as f32)
                .collect();
            Tensor::from_slice(&values).view(&shape[..]).to_kind(self.kind)
        };
        let wanted = match self.name {
            "gpt" => shape,
            "unet" => vec![shape[0], shape[2], shape[3]],
            _ => vec![shape[0]],
        };
        let target = draw("target", &wanted);
        (input.to_device(device()), target.to_device(device()))
    }

    fn read(&self, name: &str) -> Tensor {
        self.expected.read(name).unwrap()
    }

    fn near(&self, got: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
        let difference = relative_l2(got, expected);
        assert_values!(difference < tolerance, "{} in {:?}, {what}: {difference:e}", self.name, self.kind);
    }
}

/// Returns a hash of the names, shapes and types of a model's state in its order, as the script computes it.
fn digest(registry: &Registry) -> String {
    let rows: String = registry
        .state()
        .iter()
        .map(|entry| {
            let kind = match entry.tensor().kind() {
                Kind::Int64 => "int64",
                Kind::Float => "float32",
                other => panic!("{other:?}"),
            };
            format!("{} {:?} {kind}\n", entry.name(), entry.tensor().size())
        })
        .collect();
    format!("{:016x}", formula::name_hash(&rows))
}

/// Compares names, shapes, types and order with PyTorch's.
///
/// # Panics
/// If they differ.
pub fn names_shapes_types_and_order_are_pytorchs() {
    for name in CASES {
        let about = about(name);
        let mut registry = Registry::new(device());
        drop(network(name, &about["settings"], &mut registry));
        assert_eq!(Some(registry.parameter_count() as u64), about["parameters"].as_u64(), "{name}");
        assert_eq!(about["state"], digest(&registry), "{name}");
    }
    for arch in [Architecture::ResNet50, Architecture::ResNet101, Architecture::ResNet152] {
        let mut registry = Registry::new(device());
        build(arch, 3, 1000, &mut registry).unwrap();
        let expected = &about("resnet50")["states_of_1000_classes"][name(arch)];
        assert_eq!(*expected, digest(&registry), "{arch:?}");
    }
}

/// Compares the logits of an evaluation with PyTorch's.
///
/// # Panics
/// If they differ too much.
pub fn evaluation_gives_pytorchs_logits() {
    for case in Case::all() {
        let (input, _) = case.data();
        let logits = tch::no_grad(|| (case.forward)(&input, false)).unwrap();
        case.near(&logits, &case.read("eval.logits"), case.tolerance.logits, "evaluation");
    }
}

/// Compares logits, gradients and statistics of a training pass with PyTorch's.
///
/// # Panics
/// If they differ too much.
pub fn training_gives_pytorchs_logits_gradients_and_statistics() {
    for case in Case::all() {
        let (input, target) = case.data();
        let logits = (case.forward)(&input, true).unwrap();
        case.near(&logits, &case.read("train.logits"), case.tolerance.logits, "logits");
        let by_class = if case.name == "gpt" { logits.transpose(1, 2) } else { logits.shallow_clone() };
        let loss = by_class.cross_entropy_loss::<Tensor>(&target, None, Reduction::Mean, -100, 0.0);
        case.near(&loss, &case.read("train.loss"), case.tolerance.logits, "loss");
        loss.backward();
        let label = format!("{} in {:?}", case.name, case.kind);
        let worst = gradients::compare(&case.registry, &case.expected, "", case.tolerance, &label);
        println!("{} in {:?}: gradients differ by at most {worst:.1e}", case.name, case.kind);
        let mut compared = 0;
        for entry in case.registry.buffers() {
            if case.expected.info(&format!("state.{}", entry.name())).is_some() {
                let expected = case.read(&format!("state.{}", entry.name()));
                let got = double(entry.tensor()).mean(Kind::Double);
                let difference = (got - expected).abs().double_value(&[]);
                assert_values!(difference < case.tolerance.exact, "{}: {difference:e}", entry.name());
                compared += 1;
            }
        }
        // Two of a batch norm's three buffers are statistics.
        assert_eq!(3 * compared, 2 * case.registry.buffers().count(), "{}", case.name);
    }
}
