//! Buffers that programs change.

use super::*;

fn names(case: &str, is_usual: bool) -> Vec<String> {
    let (program, _) = load(case);
    let written = program.written_buffers().iter().filter(|written| written.is_usual == is_usual);
    written.map(|written| written.name.clone()).collect()
}

#[test]
fn written_buffers_are_known_with_their_kind() {
    assert!(names("text", true).is_empty() && names("text", false).is_empty());
    let (usual, other) = (names("classifier", true), names("classifier", false));
    assert_eq!((usual.len(), other.len()), (12, 0));
    for name in ["bn.running_mean", "bn.running_var", "bn.num_batches_tracked"] {
        assert!(usual.contains(&format!("blocks.1.{name}")), "{usual:?}");
    }
    // `first` is a counter of a real number, and not persistent.
    let mut other = names("numbers", false);
    other.sort_unstable();
    assert_eq!(other, ["count", "first", "second"]);
    assert_eq!(names("numbers", true).len(), 3);
    // A program without in-place operations.
    assert_eq!(names("functional", false), ["mean"]);
    assert_eq!(names("functional", true).len(), 3);
    assert_eq!(names("changed", false), ["blocks.0.seen", "blocks.1.seen"]);
    let mut usual = names("plain", true);
    usual.sort_unstable();
    assert_eq!(usual.len(), 5, "instance normalisation counts no batches: {usual:?}");
}

#[test]
fn counters_that_change_otherwise_are_not_usual() {
    let entries = Entries::of("classifier").edit_nodes(|nodes| {
        let counter = tensor("b_bn_num_batches_tracked");
        let inputs = json!([{"name": "self", "arg": counter}, {"name": "other", "arg": {"as_int": 7}}]);
        nodes.push(node("remainder_.Scalar", inputs, "added"));
    });
    let (program, _) = load_bytes(&entries.bytes()).unwrap();
    let other: Vec<&str> = program
        .written_buffers()
        .iter()
        .filter(|written| !written.is_usual)
        .map(|written| written.name.as_str())
        .collect();
    assert_eq!(other, ["bn.num_batches_tracked"]);
}

fn values(registry: &Registry) -> Vec<Tensor> {
    registry.buffers().map(|entry| entry.tensor().copy()).collect()
}

#[test]
fn evaluation_changes_buffers_only_within_a_pass() {
    let expected = expected("changed");
    let check = |(program, registry): (Exported, Registry)| {
        let inputs = inputs(&program, &expected);
        step(&program, &registry, &inputs);
        let before = values(&registry);
        for _ in 0..2 {
            let found = tch::no_grad(|| program.run(&[&inputs[0]], false)).unwrap();
            assert!(found[0].allclose(&expected["evaluation.output"], 1e-5, 1e-6, false));
            assert_eq!(values(&registry), before);
        }
    };
    check(load("changed"));
    // By the program for training, which says the same.
    let mut entries = Entries::of("changed");
    entries.0.retain(|(name, _)| !name.ends_with("evaluation.json"));
    check(load_bytes(&entries.bytes()).unwrap());
}

#[test]
fn a_failed_evaluation_leaves_buffers_as_they_were() {
    let entries = Entries::of("changed").edit("extra/evaluation.json", |document| {
        let nodes = document["graph_module"]["graph"]["nodes"].as_array_mut().unwrap();
        nodes.last_mut().unwrap()["inputs"][0]["arg"] = json!({"as_none": true});
    });
    let (program, registry) = load_bytes(&entries.bytes()).unwrap();
    let before = values(&registry);
    let image = expected("changed")["input.image"].shallow_clone();
    assert!(tch::no_grad(|| program.run(&[&image], false)).is_err());
    assert_eq!(values(&registry), before);
}

#[test]
fn results_that_are_buffers_keep_their_values() {
    // Evaluation returns the buffer that it has changed.
    let entries = Entries::of("changed").edit("extra/evaluation.json", |document| {
        let specs = document["graph_module"]["signature"]["output_specs"].as_array_mut().unwrap();
        specs[0]["user_output"]["arg"] = tensor("b_blocks_0_seen");
    });
    let (program, _) = load_bytes(&entries.bytes()).unwrap();
    let image = expected("changed")["input.image"].shallow_clone();
    let found = tch::no_grad(|| program.run(&[&image], false)).unwrap();
    assert!(found[0].abs().max().double_value(&[]) > 0.0, "the buffer is zero before and after");
}

#[test]
fn complex_buffers_are_in_checkpoints_or_come_from_the_file() {
    let (_, registry) = load("changed");
    assert_eq!(registry.get("blocks.0.turns").unwrap().tensor().kind(), Kind::ComplexFloat);
    assert!(registry.get("blocks.0.wide_turns").is_none());
}
