//! Which values share memory, compared with libtorch, and views that are changed in place.

use dtrain_torch_shim::program::{Argument, Call, Frame, Operand, Operation, Output, Whole, schemas};

use super::super::graph::UNMARKED_VIEWS;
use super::*;

/// Beginnings of operations that are not called: of tests, of tensors that are not dense, and some that do not check
/// their arguments and crash.
const NOT_CALLED: [&str; 24] = [
    "_add_batch_dim",
    "_batch_norm",
    "_cudnn",
    "_dyn_quant",
    "_foobar",
    "_fused",
    "_lu_with_info",
    "_make_dual",
    "_mkldnn",
    "_native_batch_norm",
    "_nested",
    "_sparse",
    "_test",
    "_thnn",
    "_transform_bias",
    "cudnn",
    "fbgemm",
    "miopen",
    "mkldnn",
    "native_batch_norm",
    "quantized",
    "sparse",
    "to_mkldnn",
    "to_sparse",
];

/// An argument of a schema: its type, name and default.
struct Taken<'a> {
    kind: &'a str,
    name: &'a str,
    has_default: bool,
}

/// Returns the name, overload, arguments and results of a schema such as `aten::t(Tensor(a) self) -> Tensor(a)`.
fn parsed(schema: &str) -> Option<(Operation, Vec<Taken<'_>>, Vec<&str>)> {
    let (name, rest) = schema.split_once('(')?;
    let (arguments, results) = rest.rsplit_once(" -> ")?;
    let (name, overload) = name.split_once('.').unwrap_or((name, ""));
    let arguments = arguments.strip_suffix(')')?.split(", ").filter(|argument| !["*", ""].contains(argument));
    let arguments = arguments.map(|argument| {
        let (argument, default) =
            argument.split_once('=').map_or((argument, None), |(own, it)| (own, Some(it)));
        let (kind, name) = argument.rsplit_once(' ')?;
        Some(Taken { kind, name, has_default: default.is_some() })
    });
    let results = results.trim_matches(['(', ')']).split(", ").collect();
    Some((
        Operation { name: name.to_owned(), overload: overload.to_owned() },
        arguments.collect::<Option<_>>()?,
        results,
    ))
}

/// Returns values to try for an argument.
fn values(taken: &Taken<'_>) -> Vec<Argument> {
    let kind = taken.kind.split('(').next().unwrap_or_default();
    let whole =
        |numbers: &[i64]| Argument::Ints(numbers.iter().map(|number| Whole::Number(*number)).collect());
    let is_list = taken.kind.ends_with("[]");
    let mut values = match kind.trim_end_matches('?') {
        "Tensor" | "Tensor[]" if is_list => vec![Argument::Values(vec![Operand::Slot(0)])],
        "Tensor" => vec![Argument::Value(Operand::Slot(0))],
        "Tensor[]" => vec![Argument::Values(vec![Operand::Slot(0)])],
        "int" | "SymInt" => [0, 1, 6].map(|number| Argument::Int(Whole::Number(number))).to_vec(),
        "float" | "Scalar" => vec![Argument::Float(0.0), Argument::Float(1.0)],
        "bool" => vec![Argument::Bool(false), Argument::Bool(true)],
        "str" => vec![Argument::Text("ij->ji".to_owned())],
        _ if kind.starts_with("int[") || kind.starts_with("SymInt[") => {
            vec![whole(&[2, 2]), whole(&[0, 1]), whole(&[1])]
        }
        _ => Vec::new(),
    };
    if taken.has_default || kind.ends_with('?') {
        values.truncate(1);
        values.insert(0, Argument::None);
    }
    values
}

/// Returns whether a result of the call has the memory of its first argument.
fn shares(
    operation: &Operation,
    arguments: &[(String, Argument)],
    results: &[&str],
    x: &Tensor,
) -> Option<bool> {
    let lists = |length| {
        results.iter().enumerate().map(move |(number, kind)| match kind.ends_with("[]") {
            true => Output::Many((0..length).map(|at| (at == 0).then_some(number + 1)).collect()),
            false => Output::One(Some(number + 1)),
        })
    };
    // Lists have one or two elements.
    [1, 2].into_iter().find_map(|length| {
        let outputs: Vec<Output> = lists(length).collect();
        let call = Call::new(operation, arguments, &[], Device::Cpu, &outputs, &[]).ok()?;
        let mut frame = Frame::new(results.len() + 1).ok()?;
        frame.set(0, x).ok()?;
        tch::no_grad(|| call.run(&mut frame)).ok()?;
        let found = (1..=results.len()).filter_map(|slot| frame.get(slot).ok());
        let memory = x.data_ptr() as usize..x.data_ptr() as usize + 4 * x.numel();
        let is_dense =
            |found: &Tensor| found.device() == Device::Cpu && found.f_as_strided([0], [1], 0).is_ok();
        let inside = |found: Tensor| is_dense(&found) && memory.contains(&(found.data_ptr() as usize));
        Some(found.map(inside).fold(false, |any, is| any | is))
    })
}

/// Returns all choices of one value for each argument, up to a limit.
fn choices(taken: &[Taken<'_>]) -> Vec<Vec<(String, Argument)>> {
    let mut all = vec![Vec::new()];
    for one in taken {
        let values = values(one);
        let with = |chosen: &Vec<(String, Argument)>| {
            let chosen = chosen.clone();
            let named = |value| match value {
                Argument::None if one.has_default => chosen.clone(),
                value => [chosen.clone(), vec![(one.name.to_owned(), value)]].concat(),
            };
            values.iter().cloned().map(named).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).take(24).collect();
    }
    all
}

#[test]
fn results_share_memory_only_as_known() {
    tch::set_num_threads(1);
    let inputs = [
        Tensor::rand([2, 2], (Kind::Float, Device::Cpu)),
        Tensor::rand([4], (Kind::Float, Device::Cpu)),
        Tensor::rand([1, 2, 2, 2], (Kind::Float, Device::Cpu)),
    ];
    let (mut called, mut unknown, mut seen) = (0, Vec::new(), Vec::new());
    for schema in schemas().unwrap() {
        let Some((operation, taken, results)) = schema.strip_prefix("aten::").and_then(|_| parsed(&schema))
        else {
            continue;
        };
        let name = operation.name.trim_start_matches("aten::").to_owned();
        let takes_tensor =
            taken.first().is_some_and(|first| first.kind.starts_with("Tensor")) || name == "einsum";
        let gives_tensor = results.iter().any(|result| result.starts_with("Tensor"));
        let is_written = schema.contains("!)") || name.ends_with('_');
        let is_skipped =
            NOT_CALLED.iter().any(|prefix| name.starts_with(prefix)) || name.contains("backward");
        if !takes_tensor || !gives_tensor || is_written || is_skipped {
            continue;
        }
        let outcomes = choices(&taken).into_iter().flat_map(|arguments| {
            inputs.iter().filter_map(|x| shares(&operation, &arguments, &results, x)).collect::<Vec<_>>()
        });
        let outcomes: Vec<bool> = outcomes.collect();
        called += usize::from(!outcomes.is_empty());
        if outcomes.contains(&true) {
            let known = UNMARKED_VIEWS.contains(&name.as_str())
                || taken.iter().any(|one| operation.traits(one.name).unwrap().shares);
            seen.push(name.clone());
            unknown.extend((!known).then_some(name));
        }
    }
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(called > 500, "{called} operations were called");
    for name in
        ["ravel", "mT", "tensor_split", "moveaxis", "as_strided", "dropout", "type_as", "einsum", "view"]
    {
        assert!(seen.iter().any(|seen| seen == name), "{name} shares no memory in {seen:?}");
    }
}

/// Adds operations of a block on its buffer `counter` that change it through a view.
fn through(target: &str, more: Value) -> Entries {
    Entries::of("classifier").edit_nodes(|nodes| {
        let at = block_of(nodes);
        let mut inputs = vec![json!({"name": "self", "arg": tensor("b_blocks_1_bn_running_mean")})];
        inputs.extend(more.as_array().unwrap().clone());
        let view = node(target, inputs.into(), "seen");
        let inputs =
            json!([{"name": "self", "arg": tensor("seen")}, {"name": "other", "arg": {"as_float": 0.5}}]);
        let mut added = [view, node("mul_.Tensor", inputs, "halved")];
        added.iter_mut().for_each(|node| node["metadata"] = nodes[at]["metadata"].clone());
        nodes.splice(at..at, added);
    })
}

#[test]
fn recomputing_repeats_no_change_through_a_view() {
    let (program, _) = load("classifier");
    let inputs = inputs(&program, &expected("classifier"));
    let ints = |name: &str, list: &[i64]| json!({"name": name, "arg": {"as_ints": list}});
    for (target, more) in [
        ("ravel.default", json!([])),
        ("as_strided.default", json!([ints("size", &[4]), ints("stride", &[1])])),
        ("view.dtype", json!([{"name": "dtype", "arg": {"as_scalar_type": 7}}])),
        ("to.dtype", json!([{"name": "dtype", "arg": {"as_scalar_type": 7}}])),
        ("contiguous.default", json!([])),
        ("atleast_1d.default", json!([])),
    ] {
        let bytes = through(target, more).bytes();
        let run = |recomputed: usize| {
            let (program, registry) = load_bytes(&bytes).unwrap();
            assert_eq!(registry.recompute().segments(), 3, "{target}");
            registry.recompute().set(recomputed);
            step(&program, &registry, &inputs)
        };
        assert_eq!(run(3), run(0), "{target}");
    }
}

/// Trains a variant of `changed` on channels-last images.
fn run_channels_last(entries: &Entries) -> Result<Vec<Tensor>, ModelError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.pt2");
    std::fs::write(&path, entries.bytes()).unwrap();
    let mut registry = Registry::new(Device::Cpu);
    registry.channels_last = true;
    let program = Exported::load(&path, &mut registry).unwrap();
    let image = expected("changed")["input.image"].shallow_clone();
    program.run(&[&image], true)
}

#[test]
fn a_view_that_is_changed_stays_one() {
    let error = run_channels_last(&Entries::of("changed")).unwrap_err();
    assert!(matches!(error, ModelError::View(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("aten::view (") && text.contains("set model.memory_format = \"contiguous\""),
        "{text}"
    );
}

#[test]
fn a_view_that_nothing_changes_may_copy() {
    let unchanged = Entries::of("changed").edit_nodes(|nodes| {
        let change = nodes.iter_mut().find(|node| node["inputs"][0]["arg"] == tensor("view")).unwrap();
        change["target"] = json!("torch.ops.aten.mul.Tensor");
    });
    assert!(run_channels_last(&unchanged).is_ok());
}
