//! Equal results as in PyTorch, at another batch size than that of the export.

use super::*;

/// Processors round differently; normalisations of 5 samples enlarge that.
fn tolerance(case: &str) -> f64 {
    if case == "regions" { 1e-3 } else { 1e-5 }
}

/// Without `plain`, which draws random numbers: other tests of this process use the same generator.
const CASES: [&str; 6] = ["classifier", "text", "numbers", "regions", "functional", "changed"];

/// Buffers of `numbers` that its `state_dict` lacks, and so the reference.
const NOT_IN_STATE_DICT: [&str; 2] = ["buffer.first", "buffer.second"];

/// Compares tensors by name: values may differ by rounding, relative to the largest value. Gradients are sums of larger
/// terms.
fn compare(case: &str, found: &BTreeMap<String, Tensor>, expected: &BTreeMap<String, Tensor>) {
    for (name, wanted) in expected {
        let got = found.get(name).unwrap_or_else(|| panic!("{case}: no {name}"));
        assert_eq!((got.size(), got.kind()), (wanted.size(), wanted.kind()), "{case}: {name}");
        let (got, wanted) = (got.to_kind(Kind::Double), wanted.to_kind(Kind::Double));
        if got.numel() > 0 {
            let scale = wanted.abs().max().double_value(&[]).max(0.1);
            let difference = (&got - &wanted).abs().max().double_value(&[]) / scale;
            assert!(difference < tolerance(case), "{case}: {name} differs by {difference:e}");
        }
    }
    let found = found.keys().filter(|name| !NOT_IN_STATE_DICT.contains(&name.as_str()));
    assert_eq!(found.collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{case}");
}

#[test]
fn a_training_step_and_an_evaluation_are_those_of_pytorch() {
    for case in CASES {
        let (program, registry) = load(case);
        let (mut training, evaluation): (BTreeMap<_, _>, BTreeMap<_, _>) =
            expected(case).into_iter().partition(|(name, _)| !name.starts_with("evaluation."));
        let inputs = inputs(&program, &training);
        training.retain(|name, _| !name.starts_with("input."));
        compare(case, &step(&program, &registry, &inputs), &training);
        let before: Vec<Tensor> = registry.state().iter().map(|entry| entry.tensor().copy()).collect();
        let outputs = tch::no_grad(|| program.run(&inputs.iter().collect::<Vec<_>>(), false)).unwrap();
        let ports = program.evaluation_outputs().iter().zip(outputs);
        let found = ports.map(|(port, value)| (format!("evaluation.{}", port.name), value)).collect();
        compare(case, &found, &evaluation);
        for (entry, before) in registry.state().iter().zip(before) {
            assert!(entry.tensor().equal(&before), "{case}: evaluation changes {}", entry.name());
        }
    }
}

#[test]
fn a_second_step_continues_from_the_first() {
    // `second`, not persistent, has 3 after the first step and 4.5 after the second.
    let (program, registry) = load("numbers");
    let inputs = inputs(&program, &expected("numbers"));
    let value = |found: &BTreeMap<String, Tensor>| found["output.output_0"].copy();
    let first = value(&step(&program, &registry, &inputs));
    let second = value(&step(&program, &registry, &inputs));
    let change = 1.0 - 0.25 * 1.5 + 2.0;
    assert!(((second - first) - change).abs().max().double_value(&[]) < 1e-5);
}

#[test]
fn recomputed_segments_give_the_same_bits() {
    for case in CASES {
        let (program, registry) = load(case);
        let inputs = inputs(&program, &expected(case));
        let plain = step(&program, &registry, &inputs);
        let (program, registry) = load(case);
        registry.recompute().set_all();
        let recomputed = step(&program, &registry, &inputs);
        assert_eq!(plain.len(), recomputed.len());
        for (name, value) in &plain {
            assert!(value.equal(&recomputed[name]), "{case}: {name}");
        }
    }
}

#[test]
fn ports_have_names_and_a_batch() {
    let (program, _) = load("numbers");
    let [image, numbers] = program.inputs() else { panic!("two inputs") };
    assert_eq!((image.name.as_str(), numbers.name.as_str()), ("image", "numbers"));
    assert_eq!((image.kind, &image.shape), (Kind::Float, &vec![None, Some(2), Some(4), Some(4)]));
    assert_eq!(program.outputs().len(), 2);
    let (program, _) = load("classifier");
    let names: Vec<&str> = program.outputs().iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["logits", "aux"]);
    assert_eq!(program.outputs(), program.evaluation_outputs());
    let (program, _) = load("text");
    assert_eq!((program.inputs()[0].name.as_str(), program.inputs()[0].kind), ("tokens", Kind::Int64));
    assert_eq!(program.outputs()[0].shape, [None, Some(6), Some(11)]);
    let (program, _) = load("plain");
    let names: Vec<&str> = program.outputs().iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["output_0"], "the second result is a number");
}

#[test]
fn registries_have_ties_and_frozen_parameters() {
    let (_, registry) = load("text");
    assert_eq!(registry.tied(), [("head.weight".to_owned(), "embed.weight".to_owned())]);
    assert!(registry.get("head.weight").is_none());
    let (_, registry) = load("numbers");
    let frozen: Vec<&str> =
        registry.parameters().filter(|entry| entry.is_frozen()).map(|entry| entry.name()).collect();
    assert_eq!(frozen, ["frozen"]);
    let kind = |name: &str| registry.get(name).unwrap().tensor().kind();
    assert_eq!((kind("keep"), kind("wide"), kind("count")), (Kind::Bool, Kind::Double, Kind::Float));
    assert!(registry.get("scale").is_none(), "a buffer that is not persistent");
}

#[test]
fn weights_become_the_registrys_dtype() {
    let mut registry = Registry::new(Device::Cpu);
    registry.kind = Kind::Double;
    let program = Exported::load(&reference("classifier.pt2"), &mut registry).unwrap();
    let image = expected("classifier")["input.image"].to_kind(Kind::Double);
    let found = step(&program, &registry, &[image]);
    assert!(
        found
            .iter()
            .all(|(name, value)| value.kind() == Kind::Double || name.ends_with("tracked") || name == "loss")
    );
}

#[test]
fn small_batches_are_known() {
    let least = |entries: Entries| load_bytes(&entries.bytes()).unwrap().0.min_micro_batch();
    for (case, of_norms) in
        [("classifier", 2), ("numbers", 2), ("regions", 2), ("plain", 1), ("functional", 1), ("text", 1)]
    {
        assert_eq!(least(Entries::of(case)), 2, "{case}: an export is valid from two samples");
        assert_eq!(least(Entries::of(case).valid_from(1)), of_norms, "{case}");
    }
    let (program, registry) = load("classifier");
    let image = expected("classifier")["input.image"].narrow(0, 0, 1);
    let error = program.run(&[&image], true).unwrap_err();
    assert!(matches!(error, ModelError::Batch { .. }), "{error}");
    assert!(tch::no_grad(|| program.run(&[&image], false)).is_ok());
    drop(registry);
}
