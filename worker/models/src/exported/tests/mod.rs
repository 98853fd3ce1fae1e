//! Programs that PyTorch wrote, compared with what it computed (tests/parity/make_exported.py), and damaged ones.
#![allow(clippy::unwrap_used)]

mod archives;
mod buffers;
mod damage;
mod draws;
mod entries;
mod memory;
mod parity;
mod refusals;
mod segments;
mod sync;
mod warnings;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::super::error::ModelError;
use super::super::registry::Registry;
use super::Exported;
use entries::{Entries, reference};

const WEIGHTS: &str = "data/weights/model_weights_config.json";

/// Changes the first operation whose target contains `target`.
fn edit_node(case: &str, target: &str, change: impl FnOnce(&mut Value)) -> Entries {
    Entries::of(case).edit_nodes(|nodes| {
        change(nodes.iter_mut().find(|node| node["target"].as_str().unwrap().contains(target)).unwrap());
    })
}

fn tensor(name: &str) -> Value {
    json!({"as_tensor": {"name": name}})
}

/// Returns an operation with a tensor as its result.
fn node(target: &str, inputs: Value, result: &str) -> Value {
    json!({"target": format!("torch.ops.aten.{target}"), "inputs": inputs, "outputs": [tensor(result)]})
}

/// Returns the place of the first operation of block 1 of `classifier`.
fn block_of(nodes: &[Value]) -> usize {
    let is_inside = |node: &Value| node["metadata"]["nn_module_stack"].to_string().contains("blocks.1.conv1");
    nodes.iter().position(is_inside).unwrap()
}

fn refused(entries: &Entries, words: &[&str]) {
    let text = refusal(entries);
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

fn load(case: &str) -> (Exported, Registry) {
    let mut registry = Registry::new(Device::Cpu);
    let program = Exported::load(&reference(&format!("{case}.pt2")), &mut registry).unwrap();
    (program, registry)
}

fn expected(case: &str) -> BTreeMap<String, Tensor> {
    let tensors = Tensor::read_safetensors(reference(&format!("{case}.safetensors"))).unwrap();
    tensors.into_iter().collect()
}

fn inputs(program: &Exported, expected: &BTreeMap<String, Tensor>) -> Vec<Tensor> {
    let of = |name: &str| expected[&format!("input.{name}")].shallow_clone();
    program.inputs().iter().map(|port| of(&port.name)).collect()
}

/// Returns the sum of the mean squares.
fn loss(outputs: &[Tensor]) -> Tensor {
    let terms = outputs.iter().map(|output| output.square().mean(Kind::Float));
    terms.reduce(|sum, term| sum + term).unwrap()
}

/// Returns all results of a training step by the names of the references.
fn step(program: &Exported, registry: &Registry, inputs: &[Tensor]) -> BTreeMap<String, Tensor> {
    for entry in registry.parameters() {
        let mut leaf = entry.tensor().shallow_clone().set_requires_grad(!entry.is_frozen());
        leaf.zero_grad();
    }
    tch::set_num_threads(1);
    let outputs = program.run(&inputs.iter().collect::<Vec<_>>(), true).unwrap();
    let loss = loss(&outputs);
    registry.recompute().backward(&loss).unwrap();
    let mut found = BTreeMap::from([("loss".to_owned(), loss.detach())]);
    for (port, value) in program.outputs().iter().zip(&outputs) {
        found.insert(format!("output.{}", port.name), value.detach());
    }
    for entry in registry.parameters().filter(|entry| entry.tensor().grad().defined()) {
        found.insert(format!("grad.{}", entry.name()), entry.tensor().grad().copy());
    }
    for entry in registry.buffers() {
        // The references have pairs of real numbers.
        let value = match entry.tensor().is_complex() {
            true => entry.tensor().view_as_real(),
            false => entry.tensor().shallow_clone(),
        };
        found.insert(format!("buffer.{}", entry.name()), value.copy());
    }
    found
}

fn load_bytes(bytes: &[u8]) -> Result<(Exported, Registry), ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pt2");
    std::fs::write(&path, bytes).unwrap();
    let mut registry = Registry::new(Device::Cpu);
    Exported::load(&path, &mut registry).map(|program| (program, registry))
}

/// Returns the message of a file that is refused, without its path.
fn refusal(entries: &Entries) -> String {
    message(load_bytes(&entries.bytes()))
}

fn message(outcome: Result<(Exported, Registry), ModelError>) -> String {
    let Err(error) = outcome else { panic!("the file was loaded") };
    let text = error.to_string();
    assert!(!text.contains('\n'), "more than a line: {text}");
    text.split_once("model.pt2: ").map_or(text.clone(), |(_, problem)| problem.to_owned())
}
