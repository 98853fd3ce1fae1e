//! Segments for recomputation.

use super::super::archive::Archive;
use super::super::schema::Document;
use super::super::{graph, segments, tensors};
use super::*;

fn names(case: &str) -> Vec<String> {
    let mut archive = Archive::open(&reference(&format!("{case}.pt2"))).unwrap();
    let document: Document = archive.json("models/model.json").unwrap();
    let module = &document.graph_module;
    let tensors =
        tensors::load(&mut archive, &mut Registry::new(Device::Cpu), &module.signature, &Default::default())
            .unwrap();
    let program = graph::resolve(&archive, module, &tensors).unwrap();
    segments::find(&program).into_iter().map(|part| part.name).collect()
}

#[test]
fn repeated_blocks_are_segments() {
    assert_eq!(names("text"), ["layers.0", "layers.1", "layers.2"]);
    assert_eq!(names("classifier"), ["blocks.0", "blocks.1", "blocks.2"]);
    assert_eq!(load("text").1.recompute().segments(), 3);
}

#[test]
fn each_call_of_a_module_is_a_segment_and_one_with_two_results_is_not() {
    assert_eq!(names("regions"), ["twice", "twice@1"]);
    assert!(names("functional").is_empty() && names("plain").is_empty() && names("numbers").is_empty());
}

/// Adds an operation on a buffer behind the first operation of a block.
fn with_operation(target: &str, inputs: Value) -> Entries {
    Entries::of("classifier").edit_nodes(|nodes| {
        let at = block_of(nodes);
        let mut node = node(target, inputs, "added");
        node["metadata"] = nodes[at]["metadata"].clone();
        nodes.insert(at + 1, node);
    })
}

#[test]
fn modules_that_cannot_be_repeated_are_no_segments() {
    let [mean, x] = [tensor("b_blocks_1_bn_num_batches_tracked"), tensor("p_blocks_1_bn_weight")];
    let count = |entries: Entries| load_bytes(&entries.bytes()).unwrap().1.recompute().segments();
    // The counter is read and changed.
    let read = json!([{"name": "self", "arg": x}, {"name": "other", "arg": mean}]);
    assert_eq!(count(with_operation("add.Tensor", read)), 2);
    // Nothing reads it but operations that change it.
    let change = json!([{"name": "self", "arg": mean}, {"name": "other", "arg": {"as_int": 2}}]);
    assert_eq!(count(with_operation("mul_.Tensor", change)), 3);
    // A layer behind the block changes the counter that the block reads.
    let later = tensor("b_bn_num_batches_tracked");
    let read =
        json!([{"name": "self", "arg": tensor("p_blocks_1_bn_weight")}, {"name": "other", "arg": later}]);
    assert_eq!(count(with_operation("add.Tensor", read)), 2);
}

/// Adds a number that block 1 computes and the last layers use.
fn with_number() -> Entries {
    Entries::of("classifier").edit_nodes(|nodes| {
        let at = block_of(nodes);
        let (metadata, number) = (nodes[at]["metadata"].clone(), json!({"as_name": "number"}));
        let one = |name: &str| json!({"name": name, "arg": {"as_int": 1}});
        let node = json!({
            "target": "_operator.mul", "inputs": [one("a"), one("b")], "outputs": [{"as_sym_int": number}],
            "metadata": metadata,
        });
        nodes.insert(at + 1, node);
        let flatten = nodes.iter_mut().find(|node| node["target"] == "torch.ops.aten.flatten.using_ints");
        flatten.unwrap()["inputs"][1]["arg"] = json!({"as_sym_int": number});
    })
}

#[test]
fn later_operations_may_use_the_numbers_of_a_segment() {
    let (program, registry) = load("classifier");
    let inputs = inputs(&program, &expected("classifier"));
    let plain = step(&program, &registry, &inputs);
    for recomputed in 0..=3 {
        let (program, registry) = load_bytes(&with_number().bytes()).unwrap();
        assert_eq!(registry.recompute().segments(), 3);
        registry.recompute().set(recomputed);
        assert_eq!(step(&program, &registry, &inputs), plain, "{recomputed} recomputed");
    }
}

#[test]
fn a_module_that_shares_an_input_it_uses_twice_is_no_segment() {
    // Block 1 uses its input a second time, and the head uses it too.
    let count = |inside: bool, outside: Option<&str>| {
        let entries = Entries::of("classifier").edit_nodes(|nodes| {
            let at = block_of(nodes);
            let (input, metadata) = (nodes[at]["inputs"][0]["arg"].clone(), nodes[at]["metadata"].clone());
            let added = |name: &str, operation: &str| {
                node(&format!("{operation}.default"), json!([{"name": "self", "arg": input}]), name)
            };
            if let Some(operation) = outside {
                nodes.push(added("outside", operation));
            }
            if inside {
                let mut node = added("inside", "relu");
                node["metadata"] = metadata;
                nodes.insert(at + 1, node);
            }
        });
        load_bytes(&entries.bytes()).unwrap().1.recompute().segments()
    };
    assert_eq!([count(false, None), count(true, None), count(false, Some("relu"))], [3, 3, 3]);
    assert_eq!(count(true, Some("relu")), 2);
    // No gradient passes.
    assert_eq!(count(true, Some("detach")), 3);
}

#[test]
fn a_module_whose_input_changes_later_is_no_segment() {
    let entries = Entries::of("classifier").edit_nodes(|nodes| {
        let input = nodes[block_of(nodes)]["inputs"][0]["arg"].clone();
        let inputs = json!([{"name": "self", "arg": input}, {"name": "other", "arg": {"as_int": 2}}]);
        nodes.push(node("mul_.Tensor", inputs, "added"));
    });
    assert_eq!(load_bytes(&entries.bytes()).unwrap().1.recompute().segments(), 2);
}

#[test]
fn a_computed_momentum_is_an_error() {
    let entries = Entries::of("classifier").edit_nodes(|nodes| {
        let is_norm = |node: &Value| node["target"] == "torch.ops.aten.batch_norm.default";
        let at = nodes.iter().position(is_norm).unwrap();
        let arguments = nodes[at]["inputs"].as_array_mut().unwrap();
        let momentum = arguments.iter_mut().find(|argument| argument["name"] == "momentum").unwrap();
        momentum["arg"] = json!({"as_sym_float": {"as_name": "added"}});
        let inputs = json!([{"name": "a", "arg": {"as_int": 1}}]);
        let outputs = json!([{"as_sym_float": {"as_name": "added"}}]);
        nodes.insert(at, json!({"target": "torch.sym_float", "inputs": inputs, "outputs": outputs}));
    });
    let error = load_bytes(&entries.bytes()).map(drop).unwrap_err().to_string();
    assert!(
        error.contains("the momentum of a batch normalisation") && error.contains("is computed"),
        "{error}"
    );
}
