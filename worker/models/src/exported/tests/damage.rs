//! Descriptions of programs and tensors that do not fit.

use super::*;

const MODEL: &str = "models/model.json";

fn functional() -> Entries {
    Entries::of("functional")
}

fn edit_weight(name: &str, change: impl FnOnce(&mut Value)) -> Entries {
    functional().edit(WEIGHTS, |config| change(&mut config["config"][name]))
}

#[test]
fn garbage_instead_of_json_is_refused() {
    let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    for case in ["functional", "numbers"] {
        let json: Vec<usize> = (0..Entries::of(case).0.len())
            .filter(|number| Entries::of(case).0[*number].0.ends_with(".json"))
            .collect();
        assert!(json.len() >= 3);
        for number in json {
            for garbage in [b"\xff\x00{".to_vec(), b"{}".to_vec(), b"[]".to_vec(), deep.clone()] {
                let mut entries = Entries::of(case);
                let name = entries.0[number].0.clone();
                // All fields of the notes have defaults.
                let is_valid = name.ends_with("dtrain.json") && garbage.len() == 2;
                entries.0[number].1 = garbage;
                match is_valid {
                    true => assert!(load_bytes(&entries.bytes()).is_ok()),
                    false => refused(&entries, &[name.split_once('/').unwrap().1, "is invalid"]),
                }
            }
        }
    }
}

#[test]
fn unknown_parts_of_a_program_are_named() {
    let unknown =
        edit_node("functional", "relu", |node| node["target"] = json!("torch.ops.mine.relu.default"));
    refused(&unknown, &["mine::relu", "make_exported.py:", "model.libraries"]);
    let unknown = edit_node("plain", "dropout", |node| node["target"] = json!("torch.ops.mine.drop.default"));
    refused(&unknown, &["mine::drop", "in `dropout`", "model.libraries"]);
    let python = edit_node("functional", "relu", |node| node["target"] = json!("numpy.sin"));
    refused(&python, &["numpy.sin", "is not supported"]);
    let region = edit_node("regions", "wrap_with_autocast", |node| {
        node["target"] = json!("torch.ops.higher_order.cond");
    });
    refused(&region, &["cond", "is not supported"]);
    let kind = edit_node("functional", "relu", |node| node["inputs"][0]["arg"] = json!({"as_secret": 1}));
    refused(&kind, &[MODEL, "as_secret"]);
    let name = edit_node("functional", "relu", |node| node["inputs"][0]["name"] = json!("secret"));
    refused(&name, &["aten::relu", "no argument `secret`"]);
    let twice = edit_node("functional", "relu", |node| {
        let first = node["inputs"][0].clone();
        node["inputs"].as_array_mut().unwrap().push(first);
    });
    refused(&twice, &["aten::relu", "given twice"]);
    let missing = edit_node("functional", "relu", |node| node["inputs"] = json!([]));
    refused(&missing, &["aten::relu", "`self` is missing"]);
    let dtype = edit_node("numbers", "to.dtype", |node| node["inputs"][1]["arg"] = json!({"as_int": 999}));
    refused(&dtype, &["aten::to.dtype", "`dtype` has an unknown value"]);
}

#[test]
fn values_must_be_computed_before_their_use() {
    let early = edit_node("functional", "relu", |node| {
        node["inputs"][0]["arg"]["as_tensor"]["name"] = json!("mul_11");
    });
    refused(&early, &["`mul_11` is used before it is computed"]);
    let own =
        edit_node("functional", "relu", |node| node["inputs"][0]["arg"]["as_tensor"]["name"] = json!("relu"));
    refused(&own, &["`relu` is used before it is computed"]);
    let graph = edit_node("functional", "relu", |node| {
        node["inputs"][0]["arg"] = json!({"as_graph": {"name": "g", "graph": {"nodes": []}}});
    });
    refused(&graph, &["a graph is an argument"]);
    let number = edit_node("regions", "_operator.mul", |node| {
        node["inputs"][0]["arg"] = json!({"as_sym_int": {"as_name": "p_fc_weight"}});
    });
    refused(&number, &["`p_fc_weight` is a tensor where a number is expected"]);
}

#[test]
fn programs_need_results_and_known_inputs() {
    let results =
        |specs: Value| functional().edit_program(|program| program["signature"]["output_specs"] = specs);
    refused(&results(json!([])), &["returns no tensor"]);
    refused(&results(json!([{"user_output": {"arg": {"as_int": 3}}}])), &["returns no tensor"]);
    refused(&results(json!([{"gradient_to_parameter": {}}])), &["backward pass"]);
    let unknown = json!([{"buffer_mutation": {"arg": {"name": "relu"}, "buffer_name": "x"}}]);
    refused(&results(unknown), &["unknown buffer `x`"]);
    let input = |spec: Value| {
        functional()
            .edit_program(|program| program["signature"]["input_specs"].as_array_mut().unwrap().push(spec))
    };
    refused(
        &input(json!({"user_input": {"arg": {"as_sym_int": {"as_name": "s"}}}})),
        &["a number that changes"],
    );
    refused(&input(json!({"custom_obj": {"custom_obj_name": "o"}})), &["the object `o`"]);
    let absent = json!({"parameter": {"arg": {"name": "p"}, "parameter_name": "absent"}});
    refused(&input(absent), &["`absent`", "has no data"]);
    let meta =
        functional().edit_program(|program| program["graph"]["tensor_values"]["image"]["dtype"] = json!(99));
    refused(&meta, &["does not describe `image`"]);
}

#[test]
fn weights_must_fit_their_files() {
    let meta = |field: &'static str, value: Value| {
        edit_weight("conv.weight", move |weight| weight["tensor_meta"][field] = value)
    };
    let ints = |values: &[i64]| values.iter().map(|value| json!({"as_int": value})).collect::<Value>();
    let most = i64::MAX;
    for (field, value, words) in [
        ("sizes", ints(&[5, 3, 3, 3]), "needs 135 elements"),
        ("sizes", ints(&[4, 3, 3]), "invalid"),
        ("sizes", ints(&[most; 4]), "invalid"),
        ("sizes", ints(&[0, -1, most, most]), "invalid"),
        ("sizes", ints(&[-4, 3, 3, 3]), "invalid"),
        ("sizes", ints(&[2, 3, 3, 3]), "takes [4, 3, 3, 3]"),
        ("sizes", json!([{"as_expr": {}}, {"as_int": 3}, {"as_int": 3}, {"as_int": 3}]), "not constant"),
        ("strides", ints(&[-27, 9, 3, 1]), "invalid"),
        ("strides", ints(&[most, 9, 3, 1]), "invalid"),
        ("strides", ints(&[28, 9, 3, 1]), "needs"),
        ("strides", json!([]), "invalid"),
        ("storage_offset", json!({"as_int": -1}), "invalid"),
        ("storage_offset", json!({"as_int": 1}), "needs 109 elements"),
        ("storage_offset", json!({"as_int": most}), "needs 9223372036854775915 elements"),
        ("dtype", json!(9), "dtype number 9"),
        ("dtype", json!(6), "call model.float()"),
        ("dtype", json!(13), "call model.float()"),
    ] {
        refused(&meta(field, value), &["conv.weight", words]);
    }
    for path in ["../x", "/etc/passwd", "weight_0/../../../models/model.json"] {
        let entries = edit_weight("conv.weight", |weight| weight["path_name"] = json!(path));
        refused(&entries, &["no entry", path]);
    }
    refused(
        &edit_weight("conv.weight", |weight| weight["use_pickle"] = json!(true)),
        &["conv.weight", "pickled"],
    );
    let without = functional().edit(WEIGHTS, |config| {
        config["config"].as_object_mut().unwrap().remove("conv.weight");
    });
    refused(&without, &["conv.weight", "has no data"]);
}

#[test]
fn elements_repeat_only_within_limits() {
    let expanded = |length: i64| {
        edit_weight("mean", |mean| {
            mean["tensor_meta"]["sizes"] = json!([{"as_int": length}]);
            mean["tensor_meta"]["strides"] = json!([{"as_int": 0}]);
        })
    };
    let (_, registry) = load_bytes(&expanded(4).bytes()).unwrap();
    assert_eq!(registry.get("mean").unwrap().tensor().size(), [4]);
    refused(&expanded(1 << 40), &["`mean`", "far more bytes than the file"]);
}

#[test]
fn wrong_indexes_and_lists_are_errors_of_a_run() {
    let image = expected("regions")["input.x"].shallow_clone();
    let run = |entries: Entries| {
        let (program, _) = load_bytes(&entries.bytes()).unwrap();
        let error = program.run(&[&image], true).unwrap_err().to_string();
        assert!(!error.contains("_M_range_check"), "{error}");
        error
    };
    let more = edit_node("regions", "aten.chunk", |node| {
        let extra = json!({"name": "extra"});
        node["outputs"][0]["as_tensors"].as_array_mut().unwrap().push(extra);
    });
    assert!(run(more).contains("returned 3 tensors, and the program uses 4"));
    let single = edit_node("regions", "aten.softmax", |node| {
        node["outputs"] = json!([{"as_tensors": [{"name": "softmax"}]}]);
    });
    assert!(run(single).contains("aten::softmax"));
    let dim = edit_node("regions", "aten.cat", |node| {
        node["inputs"].as_array_mut().unwrap().push(json!({"name": "dim", "arg": {"as_int": i64::MAX}}));
    });
    assert!(run(dim).contains("aten::cat"));
    let none = edit_node("regions", "aten.tanh", |node| node["inputs"][0]["arg"] = json!({"as_none": true}));
    assert!(run(none).contains("aten::tanh in `pairs.0` (make_exported.py:"));
    let two = edit_node("regions", "_operator.mul", |node| {
        node["inputs"].as_array_mut().unwrap().pop();
    });
    assert!(run(two).contains("_operator.mul (make_exported.py:"));
    let (program, _) = load("regions");
    assert!(program.run(&[], true).is_err());
}

#[test]
fn deep_modules_are_no_problem() {
    let stack: Vec<String> = (0..50_000).map(|level| format!("k{level},m{level},net.M")).collect();
    let entries = edit_node("functional", "relu", |node| {
        node["metadata"]["nn_module_stack"] = json!(stack.join(";"));
    });
    assert!(load_bytes(&entries.bytes()).is_ok());
}

#[test]
fn evaluation_without_a_program_of_its_own_draws_no_random_numbers() {
    let random = edit_node("functional", "aten.alias", |node| {
        node["target"] = json!("torch.ops.aten.rand_like.default");
    });
    refused(&random, &["aten::rand_like", "no program for evaluation", "dtrain import"]);
}

#[test]
fn computed_weights_of_normalisations_are_refused() {
    let computed = Entries::of("plain").edit_nodes(|nodes| {
        let norms = nodes.iter_mut().filter(|node| node["target"] == "torch.ops.aten.batch_norm.default");
        let of_batch = norms.last().unwrap();
        of_batch["inputs"][1]["arg"] = tensor("view");
    });
    refused(&computed, &["the weight of a batch normalisation in `without`", "is computed"]);
}

#[test]
fn guards_that_are_damaged_or_false_are_refused() {
    let guarded = |guard: &str| {
        let guards = json!([guard]);
        functional().edit(MODEL, move |document| document["guards_code"] = guards)
    };
    for damaged in ["L['image'].size()[0] %", "L['secret'].size()[1] == 3", "open('x')", "a\nb"] {
        let text = damaged.replace('\n', " ");
        let words =
            [&format!("the guard `{text}` cannot be read"), "write the file again by `dtrain import`"];
        refused(&guarded(damaged), &words);
    }
    let branch = guarded("(L['image'].size()[0] % 2) == 1");
    refused(&branch, &["not valid for a batch of 2", "`(L['image'].size()[0] % 2) == 1` is false"]);
    let noted = Entries::of("classifier").edit("extra/dtrain.json", |notes| {
        let guards = json!([{"guard": "L['image'].size()[0] != 12", "place": "net.py:3 `if x:`"}]);
        notes["guards"] = json!({"train": guards, "evaluate": []});
    });
    refused(&noted, &["not valid for a batch of 12", "is false (net.py:3 `if x:`)"]);
    assert!(load_bytes(&guarded("L['image'].size()[0]*49 != 1").bytes()).is_ok());
    let older =
        functional().edit(MODEL, |document| _ = document.as_object_mut().unwrap().remove("guards_code"));
    assert!(!load_bytes(&older.bytes()).unwrap().0.has_guards());
    assert!(load("functional").0.has_guards());
}

#[test]
fn ranges_bound_batches_and_lengths() {
    let ranged = |least: Value, most: Value| {
        functional().edit(MODEL, move |document| {
            for range in document["range_constraints"].as_object_mut().unwrap().values_mut() {
                *range = json!({"min_val": least, "max_val": most});
            }
        })
    };
    refused(
        &ranged(json!(9), json!(8)),
        &["the file is damaged: the range of `s", "minimum 9 above maximum 8"],
    );
    refused(&ranged(json!("x"), json!(8)), &[MODEL, "is invalid"]);
    let (program, _) = load_bytes(&ranged(json!(3), json!(64)).bytes()).unwrap();
    assert_eq!((program.min_micro_batch(), program.max_micro_batch()), (3, Some(64)));
    assert_eq!(program.evaluation_batches(), (3, Some(64)));
}
