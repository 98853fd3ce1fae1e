//! Weights under other names, in several files, or with values that are not finite.

use std::fs;

use super::*;

const MODES: [WeightsMode; 3] = [WeightsMode::Strict, WeightsMode::FineTune, WeightsMode::Partial];

/// Writes a model's tensors under the names that `rename` gives, each as often as it has names.
fn write_named(registry: &Registry, path: &Path, rename: impl Fn(&str) -> Vec<String>) {
    let tensors: Vec<(String, Tensor)> = registry
        .state()
        .iter()
        .flat_map(|entry| rename(entry.name()).into_iter().map(|name| (name, entry.tensor().detach())))
        .collect();
    let borrowed: Vec<_> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.shallow_clone())).collect();
    write_tensors(path, &borrowed);
}

fn all_same(a: &Registry, b: &Registry) -> bool {
    a.state().iter().all(|entry| same(a, b, entry.name()))
}

fn load(registry: &Registry, path: &Path, mode: WeightsMode) -> Result<LoadReport, ModelError> {
    load_renamed(registry, path, mode, &Renames::default(), &BTreeSet::new())
}

/// Returns the pairs and the mode of a remedy, as a recipe would read them.
fn settings(text: &str, mode: WeightsMode) -> (Renames, WeightsMode) {
    let (_, pairs) = text.split_once("model.weights_rename = [").unwrap();
    let (pairs, rest) = pairs.split_once("]]").unwrap();
    let pair = |pair: &str| {
        let mut parts =
            pair.trim_matches(['[', ']']).split("', '").map(|part| part.trim_matches('\'').to_owned());
        (parts.next().unwrap(), parts.next().unwrap())
    };
    let pairs: Vec<_> = pairs.split("], ").map(pair).collect();
    let mode = if rest.contains("\"partial\"") { WeightsMode::Partial } else { mode };
    (Renames::new(&pairs).unwrap(), mode)
}

#[test]
fn one_prefix_of_all_names_is_changed_with_a_line() {
    let (_folder, path) = new_file("w.safetensors");
    let a = model(Architecture::ResNet18, 10);
    for prefix in ["module.", "model.", "state_dict.", "_orig_mod.", "state_dict.model.module.", "net_g.0."] {
        write_named(&a, &path, |name| vec![format!("{prefix}{name}")]);
        for mode in MODES {
            let b = model(Architecture::ResNet18, 10);
            let report = load(&b, &path, mode).unwrap();
            let line = format!("122 tensors loaded, without the prefix `{prefix}` of all names in the file");
            assert_eq!(report.to_string(), line);
            assert!(all_same(&a, &b), "{prefix} {mode:?}");
        }
        // A checkpoint has its own names.
        assert!(load_state(&model(Architecture::ResNet18, 10), &path, WeightsMode::Strict).is_err());
    }
    let wrap = |classes: usize| {
        let mut registry = Registry::new(Device::Cpu);
        let mut root = registry.root();
        let init = Tensor::rand([classes as i64, 3], (Kind::Float, Device::Cpu));
        let _ = root.sub("net").sub("inner").parameter("weight", &init).unwrap();
        let _ = root.sub("net").parameter("scale", &init).unwrap();
        registry
    };
    let (a, b) = (wrap(4), wrap(4));
    for (from, to, line) in [
        ("net.", "", "with the prefix `net.` before all names in the file"),
        ("net.", "module.m.", "with the prefix `net.` in the place of `module.m.` in all names in the file"),
    ] {
        write_named(&a, &path, |name| vec![name.replacen(from, to, 1)]);
        let text = load(&b, &path, WeightsMode::Strict).unwrap().to_string();
        assert_eq!(text, format!("2 tensors loaded, {line}"));
        assert!(all_same(&a, &b));
    }
}

#[test]
fn a_missing_head_keeps_its_initial_values() {
    let (_folder, path) = new_file("w.safetensors");
    let (a, b) = (model(Architecture::ResNet18, 10), model(Architecture::ResNet18, 10));
    let head = b.get("fc.weight").unwrap().tensor().copy();
    for (prefix, other) in [("", None), ("module.", None), ("", Some("head.fc.weight"))] {
        write_named(&a, &path, |name| match (is_head(name), other) {
            (true, Some(other)) if name == "fc.weight" => vec![other.to_owned()],
            (true, _) => Vec::new(),
            (false, _) => vec![format!("{prefix}{name}")],
        });
        let text = load(&b, &path, WeightsMode::FineTune).unwrap().to_string();
        assert!(text.starts_with("120 tensors loaded"), "{text}");
        assert!(text.ends_with("; the classifier keeps its initial values (the file has none)"), "{text}");
        assert!(same(&a, &b, "conv1.weight") && b.get("fc.weight").unwrap().tensor().equal(&head));
        let text = load(&b, &path, WeightsMode::Strict).unwrap_err().to_string();
        assert!(text.contains("does not fit the model"), "{text}");
    }
}

#[test]
fn advice_is_a_setting_that_works() {
    let (_folder, path) = new_file("w.safetensors");
    let a = model(Architecture::ResNet18, 10);
    // Two copies of the model, as in self-distillation; names with more than a prefix; names of a user's own rename.
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    type Names = fn(&str) -> Vec<String>;
    type Pairs = Vec<(String, String)>;
    let cases: [(Names, Pairs, &str); 4] = [
        (|name| vec![format!("student.{name}"), format!("teacher.b$'.{name}")], vec![], "student"),
        (|name| vec![format!("a.{name}"), format!("queue.x{name}")], vec![], "a"),
        (
            |name| vec![format!("module.{}", name.replace("layer1", "first")), format!("x.y.{name}z")],
            vec![pair("first", "layer1")],
            "module",
        ),
        (|name| vec![format!("m.{name}"), format!("n.{name}.{name}")], vec![pair("^n.", "n$1.")], "m"),
    ];
    for (names, own, word) in cases {
        write_named(&a, &path, names);
        for mode in [WeightsMode::Strict, WeightsMode::FineTune, WeightsMode::Partial] {
            let b = model(Architecture::ResNet18, 10);
            let renames = Renames::new(&own).unwrap();
            let text = load_renamed(&b, &path, mode, &renames, &BTreeSet::new()).unwrap_err().to_string();
            assert!(!same(&a, &b, "conv1.weight"), "nothing is loaded");
            assert!(text.contains(&format!("^{word}")), "{text}");
            assert!(own.iter().all(|(pattern, _)| text.contains(pattern.as_str())), "{text}");
            let (renames, mode) = settings(&text, mode);
            let report = load_renamed(&b, &path, mode, &renames, &BTreeSet::new()).unwrap();
            assert_eq!(report.loaded, 122, "{text}");
            assert!(all_same(&a, &b), "{text}");
        }
    }
}

#[test]
fn half_of_a_model_is_not_loaded_in_silence() {
    let (_folder, path) = new_file("w.safetensors");
    let a = model(Architecture::ResNet18, 10);
    write_named(&a, &path, |name| match name.starts_with("layer") {
        true => vec![format!("module.{name}")],
        false => vec![name.to_owned()],
    });
    // Each name fits with the prefix or without: all are renamed.
    let b = model(Architecture::ResNet18, 10);
    assert_eq!(load(&b, &path, WeightsMode::Partial).unwrap().loaded, 122);
    assert!(all_same(&a, &b));
    // Here they do not, and what loaded before still loads.
    write_named(&a, &path, |name| match name.starts_with("layer") {
        true => vec![format!("module.{name}")],
        false => vec![name.to_owned(), format!("{name}.old")],
    });
    let b = model(Architecture::ResNet18, 10);
    let text = load(&b, &path, WeightsMode::Partial).unwrap().to_string();
    assert!(
        text.starts_with("8 tensors loaded, 19 batch counters missing in the file; 95 missing in the file"),
        "{text}"
    );
    assert!(
        text.contains("Set model.weights_rename = [['^module\\.', '']] to load 122 instead of 8 tensors."),
        "{text}"
    );
    let (renames, mode) = settings(&text, WeightsMode::Partial);
    assert_eq!(load_renamed(&b, &path, mode, &renames, &BTreeSet::new()).unwrap().loaded, 122);
}

#[test]
fn other_networks_parts_and_shapes_have_a_remedy() {
    let (folder, path) = new_file("w-00002-of-00003.safetensors");
    let (small, large) = (model(Architecture::ResNet18, 10), model(Architecture::ResNet34, 10));
    let refused = |registry: &Registry, mode| load(registry, &path, mode).unwrap_err().to_string();
    write_named(&small, &path, |name| if name < "layer2" { vec![name.to_owned()] } else { Vec::new() });
    let text = refused(&small, WeightsMode::FineTune);
    let part = "The file is part 2 of 3: set model.weights to the index of all parts";
    assert!(text.contains(part), "{text}");
    // Settings for a prefix would load a part of the model in silence.
    let in_part = |name: &str| name < "layer4.1";
    write_named(&small, &path, |name| match in_part(name) {
        true => vec![format!("module.{name}"), format!("other.{name}")],
        false => Vec::new(),
    });
    let text = refused(&small, WeightsMode::FineTune);
    assert!(text.contains(part) && !text.contains("model.weights_rename"), "{text}");
    write_named(
        &small,
        &path,
        |name| if in_part(name) { vec![format!("module.{name}")] } else { Vec::new() },
    );
    let report = load(&small, &path, WeightsMode::Partial).unwrap().to_string();
    assert!(report.contains("without the prefix `module.`") && report.contains(part), "{report}");

    let path = folder.path().join("w.safetensors");
    let refused = |registry: &Registry, mode| load(registry, &path, mode).unwrap_err().to_string();
    save(&large, &path);
    let text = refused(&small, WeightsMode::FineTune);
    assert!(
        text.ends_with("Use weights of a resnet18, or train a resnet34 (model.name = \"resnet34\")."),
        "{text}"
    );
    assert_eq!(load(&large, &path, WeightsMode::FineTune).unwrap().loaded, large.state().len());
    let other = model(Architecture::ResNet34, 7);
    let text = refused(&other, WeightsMode::Strict);
    assert!(
        text.ends_with("Remove model.weights_mode = \"strict\" to start a training with other classes."),
        "{text}"
    );

    write_changed(&small, &path, |name, tensor| match name {
        "conv1.weight" => Some(Tensor::zeros([64, 1, 7, 7], (Kind::Float, Device::Cpu))),
        _ => Some(tensor),
    });
    let text = refused(&small, WeightsMode::FineTune);
    let words = "Set model.weights_mode = \"partial\" to load 121 of the model's 122 tensors and initialise the others.";
    assert!(text.ends_with(words), "{text}");
    assert_eq!(load(&small, &path, WeightsMode::Partial).unwrap().loaded, 121);
}

/// A model whose `head` is its `table` again.
fn tied() -> Registry {
    let mut registry = Registry::new(Device::Cpu);
    let mut root = registry.root();
    let init = Tensor::rand([3, 2], (Kind::Float, Device::Cpu));
    let _ = root.parameter("table", &init).unwrap();
    let _ = root.sub("net").parameter("scale", &init).unwrap();
    root.tie("head", "table");
    registry
}

#[test]
fn a_tied_tensor_is_found_under_its_second_name() {
    let (_folder, path) = new_file("w.safetensors");
    let a = tied();
    for (prefix, renamed) in
        [("", ""), ("module.", ", without the prefix `module.` of all names in the file")]
    {
        write_named(&a, &path, |name| vec![format!("{prefix}{}", name.replace("table", "head"))]);
        for mode in MODES {
            let b = tied();
            let text = load(&b, &path, mode).unwrap().to_string();
            assert_eq!(text, format!("2 tensors loaded{renamed}; `head` of the file is the tied `table`"));
            assert!(all_same(&a, &b));
        }
    }
    // With the first name beside it, a prefix decides which is which.
    write_named(&a, &path, |name| match name {
        "table" => vec!["module.table".to_owned(), "head".to_owned()],
        name => vec![format!("module.{name}")],
    });
    let report = load(&tied(), &path, WeightsMode::Strict).unwrap();
    assert_eq!(
        report.to_string(),
        "2 tensors loaded, without the prefix `module.` of 2 of the 3 names in the file"
    );
}

#[test]
fn tied_values_that_are_not_finite_are_named() {
    let (_folder, path) = new_file("w.safetensors");
    let values = |last: f32| Tensor::from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, last]).view([3, 2]);
    for (table, head, words) in [
        (values(f32::NAN), values(f32::NAN), "the tensor `table` has 1 values that are not finite"),
        (values(6.0), values(f32::NAN), "the tensor `head` has 1 values that are not finite"),
        (values(6.0), values(7.0), "`head` differs from `table`"),
    ] {
        write_tensors(&path, &[("table", table), ("net.scale", values(0.0)), ("head", head)]);
        let text = load(&tied(), &path, WeightsMode::Strict).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn values_that_are_not_finite_are_named() {
    let (_folder, path) = new_file("w.safetensors");
    let make = || {
        let mut registry = Registry::new(Device::Cpu);
        let init = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
        let _ = registry.root().parameter("weight", &init).unwrap();
        let _ = registry.root().buffer("mask", &init).unwrap();
        registry
    };
    let values = |first: f32, last: f32| Tensor::from_slice(&[first, 1.0, 2.0, 3.0, 4.0, last]).view([2, 3]);
    let zeros = || values(0.0, 0.0);
    for (weight, mask, words) in [
        (
            values(1.0, f32::NAN),
            zeros(),
            Some("`weight` has 1 values that are not finite (the first is NaN)"),
        ),
        (
            values(f32::INFINITY, f32::NEG_INFINITY),
            zeros(),
            Some("`weight` has 2 values that are not finite (the first is inf)"),
        ),
        (zeros(), values(f32::NAN, 0.0), Some("`mask` has 1 values")),
        // Masks of attention are infinite, and the sum of finite values may overflow.
        (zeros(), values(f32::NEG_INFINITY, f32::INFINITY), None),
        (values(f32::MAX, f32::MAX), zeros(), None),
    ] {
        for kind in [Kind::Float, Kind::Double] {
            write_tensors(&path, &[("weight", weight.to_kind(kind)), ("mask", mask.to_kind(kind))]);
            let loaded = load(&make(), &path, WeightsMode::Strict);
            match words {
                Some(words) => assert!(loaded.unwrap_err().to_string().contains(words), "{words}"),
                None => assert_eq!(loaded.unwrap().loaded, 2),
            }
        }
    }
}

#[test]
fn sharded_weights_with_a_prefix_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (model(Architecture::ResNet18, 10), model(Architecture::ResNet18, 10));
    let part = |name: &str| if name < "layer3" { "a.safetensors" } else { "b.safetensors" };
    for file in ["a.safetensors", "b.safetensors"] {
        let path = folder.path().join(file);
        write_named(
            &a,
            &path,
            |name| if part(name) == file { vec![format!("model.{name}")] } else { Vec::new() },
        );
    }
    let map: BTreeMap<String, &str> =
        a.state().iter().map(|entry| (format!("model.{}", entry.name()), part(entry.name()))).collect();
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, serde_json::json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
    assert_eq!(load(&b, &index, WeightsMode::Strict).unwrap().loaded, 122);
    assert!(all_same(&a, &b));
}

/// The advice looks at every name once: 100,000 names in less than the time of 30 comparisons of all pairs of 1,000.
#[test]
fn advice_takes_linear_time() {
    let (_folder, path) = new_file("w.safetensors");
    let one = Tensor::zeros([1], (Kind::Uint8, Device::Cpu));
    let names: Vec<String> =
        (0..100_000).map(|number| format!("a.b.{}.c.{}.weight", number / 100, number)).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_str(), one.shallow_clone())).collect();
    write_tensors(&path, &tensors);
    let small = model(Architecture::ResNet18, 10);
    let begun = std::time::Instant::now();
    assert!(load(&small, &path, WeightsMode::FineTune).is_err());
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// Batch counters alone would leave every weight random.
#[test]
fn a_file_that_shares_only_batch_counters_is_refused() {
    let (_folder, path) = new_file("other.safetensors");
    let small = model(Architecture::ResNet18, 3);
    write_changed(&small, &path, |name, tensor| match name.ends_with("num_batches_tracked") {
        true => Some(tensor),
        false => Some(Tensor::zeros([2, 2, 2, 2, 2], (Kind::Float, Device::Cpu))),
    });
    let error = load(&small, &path, WeightsMode::Partial).unwrap_err().to_string();
    assert!(error.contains("the file does not fit the model"), "{error}");
}

/// The tensors that a file may lack are named; everything else must be there.
#[test]
fn tensors_that_may_be_new_are_named() {
    let (_folder, path) = new_file("w.safetensors");
    let (a, b) = (model(Architecture::ResNet18, 10), model(Architecture::ResNet18, 10));
    let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
    let load = |mode, new: &[&str]| {
        let new = new.iter().map(|name| (*name).to_owned()).collect();
        load_renamed(&b, &path, mode, &Renames::default(), &new).map_err(|error| error.to_string())
    };
    let odd = |name: &str, tensor| match name {
        "conv1.weight" => Some(zeros(&[64, 1, 7, 7])),
        "layer4.1.conv2.weight" => None,
        _ => Some(tensor),
    };
    write_changed(&a, &path, odd);
    let both = ["conv1.weight", "layer4.1.conv2.weight"];
    for mode in [WeightsMode::Strict, WeightsMode::FineTune] {
        let report = load(mode, &both).unwrap();
        assert_eq!((report.loaded, &report.unfilled[..]), (120, &both.map(String::from)[..]));
        let text = report.to_string();
        assert!(
            text.contains("1 missing in the file, initial values kept: `layer4.1.conv2.weight`"),
            "{text}"
        );
        assert!(text.contains("1 with another shape: `conv1.weight`"), "{text}");
        let text = load(mode, &both[..1]).unwrap_err();
        assert!(
            text.contains("missing tensors: `layer4.1.conv2.weight`") && !text.contains("conv1.weight` is"),
            "{text}"
        );
        assert!(
            text.ends_with("Add what may be new to model.weights_new, or use weights that have it."),
            "{text}"
        );
        let text = load(mode, &both[1..]).unwrap_err();
        assert!(text.contains("different shapes: `conv1.weight` is [64, 1, 7, 7]"), "{text}");
    }
    // Another head is no error of fine-tune, nor are tensors of the file alone.
    write_named(&model(Architecture::ResNet18, 7), &path, |name| match name {
        "conv1.weight" => vec!["decoder.weight".to_owned()],
        name => vec![name.to_owned()],
    });
    let text = load(WeightsMode::FineTune, &both).unwrap().to_string();
    assert!(text.contains("(7 classes in the file, 10 in the model)"), "{text}");
    assert!(text.contains("1 only in the file: `decoder.weight`"), "{text}");
    assert!(load(WeightsMode::Strict, &both).unwrap_err().contains("unexpected tensors: `decoder.weight`"));
    // A prefix of all names is changed as ever, and names that fit nothing are no reason to keep initial values.
    write_named(&a, &path, |name| vec![format!("module.{name}")]);
    let all: Vec<&str> = a.state().iter().map(Entry::name).collect();
    assert_eq!(load(WeightsMode::FineTune, &all).unwrap().loaded, 122);
    write_named(&a, &path, |name| vec![format!("{name}.old")]);
    assert!(load(WeightsMode::FineTune, &all).unwrap_err().contains("does not fit the model"));
}

#[test]
fn a_part_of_another_variant_is_refused() {
    let (_folder, path) = new_file("w.safetensors");
    let small = model(Architecture::ResNet18, 10);
    let wide = |name: &str| name.starts_with("layer") && !name.starts_with("layer1");
    write_changed(&small, &path, |name, tensor| match wide(name) && tensor.dim() > 0 {
        true => Some(Tensor::zeros([2, 2, 2, 2, 2], (Kind::Float, Device::Cpu))),
        false => Some(tensor),
    });
    let text = load(&small, &path, WeightsMode::Partial).unwrap_err().to_string();
    assert!(text.contains("The file is of another variant of the network: "), "{text}");
    assert!(text.contains("or name what may be new in model.weights_new"), "{text}");
}
