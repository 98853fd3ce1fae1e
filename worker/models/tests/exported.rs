//! Memory of exported programs, and random changes of their files, within a budget for tensors: both concern the
//! whole process, so the tests run one after the other.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../src/exported/tests/entries.rs"]
mod entries;

use std::sync::{Mutex, MutexGuard};

use dtrain_models::{Exported, ModelError, Registry};
use dtrain_torch_shim::memory;
use dtrain_torch_shim::rng::BySample;
use proptest::prelude::*;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use entries::{Entries, reference};

static ONE: Mutex<()> = Mutex::new(());

/// Begins a test, which may use this memory for tensors.
fn begin(bytes: u64) -> MutexGuard<'static, ()> {
    let guard = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    memory::enable_stats().unwrap();
    memory::set_budget(Some(bytes));
    memory::reset_peak(Device::Cpu).unwrap();
    guard
}

fn load(bytes: &[u8]) -> Result<(Exported, Registry), ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pt2");
    std::fs::write(&path, bytes).unwrap();
    let mut registry = Registry::new(Device::Cpu);
    Exported::load(&path, &mut registry).map(|program| (program, registry))
}

/// Returns an archive of operations of one argument, each on the result of the one before.
fn chain(length: usize) -> Entries {
    let tensor = |name: String| json!({"as_tensor": {"name": name}});
    let node = |number: usize| {
        json!({
            "target": "torch.ops.aten.tanh.default",
            "inputs": [{"name": "self", "arg": tensor(format!("x{number}"))}],
            "outputs": [tensor(format!("x{}", number + 1))],
        })
    };
    let meta = json!({"dtype": 7, "sizes": [{"as_expr": {}}, {"as_int": 1 << 16}]});
    let last = format!("x{length}");
    let program = json!({
        "schema_version": {"major": 8, "minor": 17},
        "graph_module": {
            "graph": {
                "nodes": (0..length).map(node).collect::<Vec<_>>(),
                "tensor_values": {"x0": meta, last.as_str(): meta},
            },
            "signature": {
                "input_specs": [{"user_input": {"arg": tensor("x0".to_owned())}}],
                "output_specs": [{"user_output": {"arg": tensor(last.clone())}}],
            },
        },
    });
    Entries(vec![("chain/models/model.json".to_owned(), program.to_string().into_bytes())])
}

#[test]
fn values_are_dropped_at_their_last_use() {
    let _one = begin(1 << 30);
    let (program, _registry) = load(&chain(50).bytes()).unwrap();
    let x = Tensor::rand([4, 1 << 16], (Kind::Float, Device::Cpu));
    let size = 4 * 4 * (1 << 16);
    let before = memory::usage(Device::Cpu).unwrap().allocated;
    memory::reset_peak(Device::Cpu).unwrap();
    let outputs = tch::no_grad(|| program.run(&[&x], true)).unwrap();
    let peak = memory::usage(Device::Cpu).unwrap().peak - before;
    assert!(peak < 2 * size + size / 2, "{peak} bytes for values of {size}");
    assert_eq!(outputs[0].size(), x.size());
    memory::set_budget(None);
}

#[test]
fn sizes_in_a_file_allocate_nothing() {
    let _one = begin(1 << 20);
    let sizes = |values: &[i64]| values.iter().map(|value| json!({"as_int": value})).collect::<Value>();
    let before = memory::usage(Device::Cpu).unwrap().allocated;
    for shape in [[1 << 40, 1, 1, 1], [1 << 20, 1 << 20, 3, 3], [i64::MAX, i64::MAX, 2, 2]] {
        for strides in [[0, 0, 0, 0], [1, 1, 1, 1], [i64::MAX, 1, 1, 1]] {
            let entries =
                Entries::of("functional").edit("data/weights/model_weights_config.json", |config| {
                    let meta = &mut config["config"]["conv.weight"]["tensor_meta"];
                    (meta["sizes"], meta["strides"]) = (sizes(&shape), sizes(&strides));
                });
            let error = load(&entries.bytes()).err().unwrap().to_string();
            assert!(error.contains("`conv.weight` does not fit"), "{error}");
        }
    }
    let usage = memory::usage(Device::Cpu).unwrap();
    assert!(usage.peak < before + (64 << 10), "{} bytes", usage.peak);
    memory::set_budget(None);
}

/// Runs a program that could be loaded, in both modes; every result is fine but an abort.
fn try_to_run((program, registry): (Exported, Registry)) {
    let input = |port: &dtrain_models::Port| {
        let shape: Vec<i64> = port.shape.iter().map(|length| length.unwrap_or(2).clamp(0, 16)).collect();
        Tensor::f_ones(shape.as_slice(), (port.kind, Device::Cpu))
    };
    let Ok(inputs) = program.inputs().iter().map(input).collect::<Result<Vec<_>, _>>() else { return };
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    registry.recompute().set_all();
    // Random operations draw by sample, as in a training.
    let _samples = BySample::enter(1, &(0..2)).unwrap();
    if let Ok(outputs) = program.run(&inputs, true) {
        let floats = outputs.iter().filter(|output| output.kind() == Kind::Float && output.requires_grad());
        for output in floats {
            let sum = output.f_sum(Kind::Float);
            let _ = sum.map_err(ModelError::from).and_then(|sum| registry.recompute().backward(&sum));
        }
    }
    let _ = tch::no_grad(|| program.run(&inputs, false));
}

/// Parts of documents whose changes reach far.
const PARTS: [(&str, &str); 5] = [
    ("models/model.json", "/graph_module"),
    ("models/model.json", "/graph_module/graph/nodes"),
    ("models/model.json", "/graph_module/graph/nodes"),
    ("models/model.json", "/graph_module/signature"),
    ("data/weights/model_weights_config.json", "/config"),
];

/// A place in a document by choices on the way, and what happens there.
#[derive(Debug, Clone)]
struct Change {
    way: Vec<usize>,
    action: u8,
    value: usize,
}

fn values() -> [Value; 20] {
    [
        json!({"as_none": true}),
        json!({"as_bool": true}),
        json!({"as_ints": [-1, i64::MAX, 3]}),
        json!({"as_tensors": []}),
        json!({"as_float": "-Infinity"}),
        json!("torch.ops.aten.add_.Tensor"),
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(2),
        json!(1000),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!("Infinity"),
        json!("x"),
        json!([]),
        json!({}),
        json!({"as_int": i64::MAX}),
    ]
}

fn apply(document: &mut Value, change: &Change) {
    let mut place = document;
    for choice in &change.way {
        let length =
            place.as_array().map(Vec::len).or(place.as_object().map(|object| object.len())).unwrap_or(0);
        if length == 0 {
            break;
        }
        let at = choice % length;
        let is_last = std::ptr::eq(choice, change.way.last().unwrap());
        if is_last && change.action == 1 {
            match place {
                Value::Array(list) => drop(list.remove(at)),
                Value::Object(object) => {
                    let key = object.keys().nth(at).unwrap().clone();
                    object.remove(&key);
                }
                _ => {}
            }
            return;
        }
        if is_last
            && change.action == 2
            && let Value::Array(list) = place
        {
            let copy = list[change.value % length].clone();
            list.insert(at, copy);
            return;
        }
        place = match place {
            Value::Array(list) => &mut list[at],
            Value::Object(object) => object.values_mut().nth(at).unwrap(),
            _ => return,
        };
    }
    let values = values();
    *place = values[change.value % values.len()].clone();
}

/// Collects the numbers, truth values and texts of a document, each with its key.
fn leaves<'a>(key: &str, value: &'a mut Value, into: &mut Vec<(String, &'a mut Value)>) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| leaves(key, value, into)),
        Value::Object(object) => {
            for (key, value) in object.iter_mut().filter(|(key, _)| *key != "metadata") {
                leaves(key, value, into);
            }
        }
        leaf => into.push((key.to_owned(), leaf)),
    }
}

/// Replaces a leaf by another number, or by a text that another leaf with the same key has: most programs stay valid.
fn exchange(document: &mut Value, change: &Change) {
    let numbers = [0, 1, -1, 2, 3, 7, 100, 1 << 20, 1 << 40, i64::MAX, i64::MIN];
    let mut all = Vec::new();
    leaves("", document, &mut all);
    let (of, from) = (change.way[0] % all.len(), change.value);
    let key = all[of].0.clone();
    let texts: Vec<Value> = all
        .iter()
        .filter(|(other, value)| *other == key && value.is_string())
        .map(|(_, text)| (**text).clone())
        .collect();
    let leaf = &mut *all[of].1;
    *leaf = match leaf {
        Value::String(_) => texts[from % texts.len()].clone(),
        Value::Bool(value) => json!(!*value),
        _ => json!(numbers[from % numbers.len()]),
    };
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let way = prop::collection::vec(any::<usize>(), 1..9);
    let change = (way, 0u8..3, any::<usize>()).prop_map(|(way, action, value)| Change { way, action, value });
    prop::collection::vec(change, 1..4)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(250))]

    #[test]
    fn changed_bytes_never_abort(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in prop::option::of(any::<prop::sample::Index>()),
        with_checksums in any::<bool>(),
    ) {
        let _one = begin(64 << 20);
        let mut entries = Entries::of("functional");
        let mut bytes = std::fs::read(reference("functional.pt2")).unwrap();
        if with_checksums {
            // Changes inside of an entry, whose checksum is right.
            for (index, byte) in &flips {
                let entry = entries.content("models/model.json");
                let at = index.index(entry.len());
                entry[at] ^= byte;
            }
            bytes = entries.bytes();
        } else {
            for (index, byte) in &flips {
                let at = index.index(bytes.len());
                bytes[at] ^= byte;
            }
        }
        bytes.truncate(length.map_or(bytes.len(), |index| index.index(bytes.len())));
        if let Ok(loaded) = load(&bytes) {
            try_to_run(loaded);
        }
    }

    #[test]
    fn changed_programs_never_abort(
        changes in changes(),
        case in prop::sample::select(vec!["functional", "plain", "regions", "numbers"]),
        part in prop::sample::select(PARTS.to_vec()),
        keeps_types in any::<bool>(),
    ) {
        let _one = begin(64 << 20);
        let (entry, part) = part;
        let entries = Entries::of(case).edit(entry, |document| {
            for change in &changes {
                match document.pointer_mut(part) {
                    Some(part) if keeps_types => exchange(part, change),
                    Some(part) => apply(part, change),
                    None => {}
                }
            }
        });
        if let Ok(loaded) = load(&entries.bytes()) {
            try_to_run(loaded);
        }
    }
}
