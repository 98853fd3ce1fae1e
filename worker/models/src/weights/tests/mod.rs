#![allow(clippy::unwrap_used)]
use tch::{Device, Kind, Tensor};

use super::super::tensor_file::tests::{new_file, write_tensors};
use super::super::{Architecture, Gpt, GptConfig, UnetConfig, VitConfig, build, build_unet};
use super::*;

mod names;

fn model(arch: Architecture, classes: usize) -> Registry {
    let mut registry = Registry::new(Device::Cpu);
    build(arch, 3, classes, &mut registry).unwrap();
    registry
}

fn same(a: &Registry, b: &Registry, name: &str) -> bool {
    a.get(name).unwrap().tensor().f_equal(b.get(name).unwrap().tensor()).unwrap()
}

/// Writes a model's tensors to a file; `change` replaces or omits some.
fn write_changed(registry: &Registry, path: &Path, change: impl Fn(&str, Tensor) -> Option<Tensor>) {
    let tensors: Vec<(&str, Tensor)> = registry
        .state()
        .iter()
        .filter_map(|entry| change(entry.name(), entry.tensor().detach()).map(|t| (entry.name(), t)))
        .collect();
    write_tensors(path, &tensors);
}

fn save(registry: &Registry, path: &Path) {
    write_changed(registry, path, |_, tensor| Some(tensor));
}

fn mismatch_text(registry: &Registry, path: &Path, mode: WeightsMode) -> String {
    let error = load_state(registry, path, mode).unwrap_err();
    assert!(
        matches!(error, ModelError::Weights(WeightsError { problem: WeightsProblem::Mismatch(_), .. })),
        "{error}"
    );
    error.to_string()
}

#[test]
fn a_saved_model_loads_into_another() {
    let (_folder, path) = new_file("model.safetensors");
    let (a, b) = (model(Architecture::ResNet18, 10), model(Architecture::ResNet18, 10));
    let mut counter = a.get("bn1.num_batches_tracked").unwrap().tensor().shallow_clone();
    let _ = counter.f_fill_(12).unwrap();
    assert!(!same(&a, &b, "conv1.weight"));
    // `b`'s parameter is a view into a flat buffer, as in the trainer: loading must fill that buffer.
    let flat = Tensor::zeros([9408], (Kind::Float, Device::Cpu));
    b.get("conv1.weight").unwrap().tensor().shallow_clone().set_data(&flat.view([64, 3, 7, 7]));

    save(&a, &path);
    let report = load_state(&b, &path, WeightsMode::Strict).unwrap();
    assert_eq!(report, LoadReport { loaded: 122, ..LoadReport::default() });
    assert!(a.state().iter().all(|entry| same(&a, &b, entry.name())));
    assert!(flat.equal(&a.get("conv1.weight").unwrap().tensor().view([-1])));
    assert!(b.parameters().all(|entry| entry.tensor().requires_grad() && entry.tensor().is_leaf()));
}

#[test]
fn other_float_types_are_converted_and_counters_may_be_missing() {
    let (_folder, path) = new_file("half.safetensors");
    let (a, b) = (model(Architecture::ResNet18, 10), model(Architecture::ResNet18, 10));
    write_changed(&a, &path, |name, tensor| match name {
        "conv1.weight" => Some(tensor.to_kind(Kind::Half)),
        "fc.weight" => Some(tensor.to_kind(Kind::BFloat16)),
        "fc.bias" => Some(tensor.to_kind(Kind::Double)),
        _ => (!is_batch_counter(name)).then_some(tensor),
    });
    let report = load_state(&b, &path, WeightsMode::Strict).unwrap();
    assert_eq!((report.loaded, report.converted, report.counters_missing), (102, 3, 20));
    assert!(same(&a, &b, "fc.bias") && same(&a, &b, "layer1.0.conv1.weight"));
    let rounded = a.get("conv1.weight").unwrap().tensor().to_kind(Kind::Half).to_kind(Kind::Float);
    assert!(b.get("conv1.weight").unwrap().tensor().equal(&rounded));
    assert_eq!(b.get("fc.weight").unwrap().tensor().kind(), Kind::Float);
}

#[test]
fn fine_tuning_keeps_a_head_of_other_classes_and_strict_is_an_error() {
    let (_folder, path) = new_file("pretrained.safetensors");
    let (a, b) = (model(Architecture::ResNet18, 1000), model(Architecture::ResNet18, 10));
    save(&a, &path);

    let text = mismatch_text(&b, &path, WeightsMode::Strict);
    assert!(text.contains("`fc.weight` is [1000, 512], in the model [10, 512]"), "{text}");
    assert!(text.contains("Only the number of classes differs"), "{text}");
    assert!(!same(&a, &b, "conv1.weight"), "a strict mismatch loads nothing");

    let head = b.get("fc.weight").unwrap().tensor().copy();
    let report = load_state(&b, &path, WeightsMode::FineTune).unwrap();
    assert_eq!((report.loaded, report.head_kept.len()), (120, 2));
    assert!(same(&a, &b, "layer4.1.bn2.weight"));
    assert!(b.get("fc.weight").unwrap().tensor().equal(&head));
    let text = report.to_string();
    assert!(
        text.ends_with("the classifier keeps its initial values (1000 classes in the file, 10 in the model)"),
        "{text}"
    );

    let c = model(Architecture::ResNet18, 1000);
    assert_eq!(load_state(&c, &path, WeightsMode::FineTune).unwrap().loaded, 122);
    assert!(same(&a, &c, "fc.bias"));
}

#[test]
fn another_network_is_named() {
    let (_folder, path) = new_file("other.safetensors");
    let (small, large) = (model(Architecture::ResNet18, 10), model(Architecture::ResNet34, 10));
    for mode in [WeightsMode::Strict, WeightsMode::FineTune] {
        save(&large, &path);
        let text = mismatch_text(&small, &path, mode);
        assert!(text.contains("the model (a resnet18): unexpected tensors: `layer1.2."), "{text}");
        assert!(text.ends_with("The file looks like a resnet34."), "{text}");
        save(&small, &path);
        let text = mismatch_text(&large, &path, mode);
        assert!(text.contains("missing tensors: `layer1.2.conv1.weight` [64, 64, 3, 3]"), "{text}");
        assert!(text.ends_with("The file looks like a resnet18."), "{text}");
    }
}

#[test]
fn fine_tuning_accepts_only_a_different_head() {
    let (_folder, path) = new_file("odd.safetensors");
    let registry = model(Architecture::ResNet18, 10);
    write_changed(&registry, &path, |name, tensor| match name {
        "conv1.weight" => Some(Tensor::zeros([64, 1, 7, 7], (Kind::Float, Device::Cpu))),
        "bn1.bias" => Some(tensor.to_kind(Kind::Int)),
        _ => (name != "fc.bias").then_some(tensor),
    });
    let text = mismatch_text(&registry, &path, WeightsMode::FineTune);
    for part in [
        "missing tensors: `fc.bias` [10]",
        "`conv1.weight` is [64, 1, 7, 7]",
        "`bn1.bias` is I32, in the model Float",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

const GPT: GptConfig = GptConfig { vocabulary: 9, context: 6, width: 8, depth: 2, heads: 2 };

#[test]
fn a_repeated_tied_weight_must_be_equal() {
    let (_folder, path) = new_file("gpt.safetensors");
    let [a, b] = [0, 1].map(|_| {
        let mut registry = Registry::new(Device::Cpu);
        Gpt::new(GPT, &mut registry).unwrap();
        registry
    });
    let write = |head: Option<Tensor>, table: bool| {
        let mut tensors: Vec<(&str, Tensor)> = a
            .state()
            .iter()
            .filter(|entry| table || entry.name() != "transformer.wte.weight")
            .map(|entry| (entry.name(), entry.tensor().detach()))
            .collect();
        tensors.extend(head.map(|head| ("lm_head.weight", head)));
        write_tensors(&path, &tensors);
    };
    let table = a.get("transformer.wte.weight").unwrap().tensor().detach();

    write(Some(table.copy()), true);
    let report = load_state(&b, &path, WeightsMode::Strict).unwrap();
    assert_eq!(report.loaded, a.state().len());
    assert!(a.state().iter().all(|entry| same(&a, &b, entry.name())));

    let _ = b.get("transformer.wte.weight").unwrap().tensor().detach().fill_(0.0);
    write(Some(&table + 1.0), true);
    let error = load_state(&b, &path, WeightsMode::Strict).unwrap_err();
    assert!(
        matches!(error, ModelError::Weights(WeightsError { problem: WeightsProblem::Untied(..), .. })),
        "{error}"
    );
    assert!(!same(&a, &b, "transformer.wte.weight"), "nothing is loaded");

    write(Some(table.copy()), false);
    let text = mismatch_text(&b, &path, WeightsMode::Strict);
    assert!(text.contains("missing tensors: `transformer.wte.weight`"), "{text}");
    assert!(text.contains("unexpected tensors: `lm_head.weight`"), "{text}");
}

#[test]
fn every_network_is_saved_loaded_and_fine_tuned() {
    let (_folder, path) = new_file("net.safetensors");
    let vit = VitConfig { image_size: 8, patch: 4, width: 8, depth: 2, heads: 2 };
    let make = |network: &str, classes: usize| {
        let mut registry = Registry::new(Device::Cpu);
        // The memory layout does not affect the file.
        registry.channels_last = classes == 4;
        match network {
            "vit" => drop(build(Architecture::Vit(vit), 3, classes, &mut registry).unwrap()),
            "resnet50" => drop(build(Architecture::ResNet50, 1, classes, &mut registry).unwrap()),
            _ => {
                let config = UnetConfig { channels: 2, classes, width: 4, depth: 2 };
                drop(build_unet(config, &mut registry).unwrap());
            }
        }
        registry
    };
    for (network, kind, head) in [
        ("vit", "a vision transformer of 2 blocks", 2),
        ("resnet50", "a resnet50", 2),
        ("unet", "a U-Net of 2 levels", 2),
    ] {
        let (a, b) = (make(network, 3), make(network, 4));
        save(&a, &path);
        let text = mismatch_text(&b, &path, WeightsMode::Strict);
        assert!(text.contains(kind), "{text}");
        assert!(text.contains("Only the number of classes differs"), "{text}");
        let report = load_state(&b, &path, WeightsMode::FineTune).unwrap();
        assert_eq!((report.loaded, report.head_kept.len()), (a.state().len() - head, head), "{network}");
        let c = make(network, 3);
        assert_eq!(load_state(&c, &path, WeightsMode::Strict).unwrap().loaded, a.state().len());
        assert!(a.state().iter().all(|entry| same(&a, &c, entry.name())), "{network}");
        let kept = a.state().len() - head;
        assert!(a.state()[..kept].iter().all(|entry| same(&a, &b, entry.name())), "{network}, channels-last");
        save(&b, &path);
        let d = make(network, 4);
        load_state(&d, &path, WeightsMode::Strict).unwrap();
        assert!(b.state().iter().all(|entry| same(&b, &d, entry.name())), "{network}");
    }
}

#[test]
fn position_embeddings_of_another_image_size_are_resampled() {
    let (_folder, path) = new_file("vit.safetensors");
    let make = |image_size: usize, classes: usize| {
        let mut registry = Registry::new(Device::Cpu);
        let vit = VitConfig { image_size, patch: 4, width: 8, depth: 1, heads: 2 };
        build(Architecture::Vit(vit), 3, classes, &mut registry).unwrap();
        registry
    };
    let (small, large) = (make(16, 3), make(32, 5));
    save(&small, &path);
    assert!(mismatch_text(&large, &path, WeightsMode::Strict).contains("`pos_embed` is [1, 17, 8]"));
    let report = load_state(&large, &path, WeightsMode::FineTune).unwrap();
    let text = report.to_string();
    assert!(text.contains("the classifier keeps its initial values"), "{text}");
    assert!(text.contains("`pos_embed` resampled from 4x4 to 8x8"), "{text}");
    let rows = |registry: &Registry| registry.get("pos_embed").unwrap().tensor().detach();
    let (given, made) = (rows(&small), rows(&large));
    assert!(made.select(1, 0).equal(&given.select(1, 0)), "the class token stays");
    let other = make(32, 5);
    assert!(!rows(&other).equal(&made));
    let text = load_state(&other, &path, WeightsMode::Partial).unwrap().to_string();
    assert!(text.contains("resampled from 4x4 to 8x8"), "{text}");
    assert!(rows(&other).equal(&made));
}

#[test]
fn a_float64_model_is_loaded_to_the_bit() {
    let (_folder, path) = new_file("model.safetensors");
    let make = || {
        let mut registry = Registry::new(Device::Cpu);
        registry.kind = Kind::Double;
        let init = Tensor::rand([5, 7], (Kind::Double, Device::Cpu));
        let _ = registry.root().parameter("weight", &init).unwrap();
        registry
    };
    let (a, b) = (make(), make());
    let weight = |registry: &Registry| registry.get("weight").unwrap().tensor().shallow_clone();
    save(&a, &path);
    load_state(&b, &path, WeightsMode::Strict).unwrap();
    assert!(weight(&a).equal(&weight(&b)));
}

#[test]
fn renames_apply_in_order() {
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let renames = Renames::new(&[pair(r"^module\.", ""), pair(r"^blocks\.(\d+)\.", "h.$1.")]).unwrap();
    assert_eq!(renames.apply("module.blocks.12.norm.weight"), "h.12.norm.weight");
    assert_eq!(renames.apply("fc.weight"), "fc.weight");
    assert!(Renames::new(&[pair("(", "")]).is_err());
}
