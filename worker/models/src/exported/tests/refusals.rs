//! Programs that dtrain would train otherwise than PyTorch.

use super::*;

fn ints(values: &[i64]) -> Value {
    values.iter().map(|value| json!({"as_int": value})).collect()
}

/// Makes the weight of the head a view of the convolution's, which has 108 elements.
fn sharing(offset: i64, strides: &[i64], is_trained: bool) -> Entries {
    Entries::of("functional").edit(WEIGHTS, |config| {
        let path = config["config"]["conv.weight"]["path_name"].clone();
        let weights = &mut config["config"];
        weights["fc.weight"]["path_name"] = path;
        weights["fc.weight"]["tensor_meta"]["strides"] = ints(strides);
        weights["fc.weight"]["tensor_meta"]["storage_offset"] = json!({"as_int": offset});
        for name in ["fc.weight", "conv.weight"] {
            weights[name]["tensor_meta"]["requires_grad"] = json!(is_trained);
        }
    })
}

#[test]
fn parameters_that_share_memory_in_other_shapes_are_refused() {
    refused(&sharing(0, &[4, 1], true), &["`conv.weight`", "`fc.weight`", "share memory", "clone it"]);
    refused(&sharing(90, &[1, 3], true), &["`conv.weight`", "`fc.weight`"]);
    assert!(load_bytes(&sharing(0, &[4, 1], false).bytes()).is_ok(), "nothing changes frozen parameters");
    // Every second element of the head's weight, from the first one and from `start`.
    let between = |start: i64| {
        sharing(0, &[4, 1], false).edit(WEIGHTS, |config| {
            let weights = &mut config["config"];
            for (name, offset) in [("bn.weight", 0), ("bn.bias", start)] {
                weights[name]["path_name"] = json!("weight_3");
                weights[name]["tensor_meta"]["strides"] = ints(&[2]);
                weights[name]["tensor_meta"]["storage_offset"] = json!({"as_int": offset});
            }
        })
    };
    assert!(load_bytes(&between(1).bytes()).is_ok(), "they have no element in common");
    refused(&between(2), &["`bn.weight`", "`bn.bias`"]);
}

#[test]
fn buffers_that_share_memory_are_refused_if_one_is_written() {
    let shared = |name: &str| {
        let name = name.to_owned();
        Entries::of("functional").edit(WEIGHTS, move |config| {
            let weights = &mut config["config"];
            let path = weights["bn.running_mean"]["path_name"].clone();
            weights[&name]["path_name"] = path;
            weights[&name]["tensor_meta"]["strides"] = ints(&[0]);
        })
    };
    refused(&shared("mean"), &["`bn.running_mean`", "`mean`", "share memory"]);
}

#[test]
fn changes_of_parameters_and_constants_are_refused() {
    let change = |name: &str| {
        edit_node("text", "torch.ops.aten.layer_norm.default", |node| {
            node["target"] = json!("torch.ops.aten.mul_.Tensor");
            node["inputs"] =
                json!([{"name": "self", "arg": tensor(name)}, {"name": "other", "arg": {"as_int": 2}}]);
        })
    };
    refused(&change("p_embed_weight"), &["aten::mul_ in `", "the parameter `embed.weight` in place"]);
    // Through a view.
    let of = |name: &str| json!([{"name": "self", "arg": tensor(name)}]);
    let through_view = Entries::of("text").edit_nodes(|nodes| {
        let view = node("detach.default", of("p_embed_weight"), "seen");
        nodes.extend([view, node("zero_.default", of("seen"), "gone")]);
    });
    refused(&through_view, &["aten::zero_", "the parameter `embed.weight` in place"]);
    // The mask as a constant of the program.
    let constant = change("b_mask").edit_program(|program| {
        let specs = program["signature"]["input_specs"].as_array_mut().unwrap();
        let mask = specs.iter_mut().find(|spec| spec["buffer"]["buffer_name"] == "mask").unwrap();
        *mask = json!({"tensor_constant": {"arg": {"name": "b_mask"}, "tensor_constant_name": "mask"}});
    });
    refused(&constant, &["the tensor `mask` in place", "register_buffer"]);
    let complex = Entries::of("changed")
        .edit_nodes(|nodes| nodes.push(node("zero_.default", of("b_blocks_0_turns"), "gone")));
    refused(&complex, &["the complex buffer `blocks.0.turns` in place", "torch.view_as_real"]);
}

#[test]
fn complex_tensors_that_checkpoints_cannot_have_are_refused() {
    let with = |field: &'static str, value: Value| {
        Entries::of("changed").edit(WEIGHTS, move |config| {
            let turns = &mut config["config"]["blocks.0.turns"];
            match field {
                "is_param" => turns["is_param"] = value,
                field => turns["tensor_meta"][field] = value,
            }
        })
    };
    refused(
        &with("is_param", json!(true)),
        &["the parameter `blocks.0.turns` is ComplexFloat", "view_as_real"],
    );
    refused(&with("dtype", json!(9)), &["`blocks.0.turns` has the dtype number 9"]);
    let wide = with("dtype", json!(11)).edit(WEIGHTS, |config| {
        let meta = &mut config["config"]["blocks.0.turns"]["tensor_meta"];
        meta["sizes"] = ints(&[1]);
    });
    refused(&wide, &["checkpoints cannot have the buffer `blocks.0.turns`", "complex64"]);
}

#[test]
fn sparse_gradients_are_refused() {
    let sparse = edit_node("text", "torch.ops.aten.embedding.default", |node| {
        node["inputs"].as_array_mut().unwrap().push(json!({"name": "sparse", "arg": {"as_bool": true}}));
    });
    refused(&sparse, &["aten::embedding in `embed`", "sparse=False"]);
}

#[test]
fn operations_without_a_derivative_are_refused_where_gradients_pass() {
    let without = |target: &str| {
        let target = format!("torch.ops.aten.{target}.default");
        edit_node("functional", "torch.ops.aten.relu.default", move |node| {
            node["target"] = json!(target);
        })
    };
    refused(&without("uniform"), &["aten::uniform", "has no derivative", "without run_decompositions()"]);
    assert!(load_bytes(&without("tanh").bytes()).is_ok());
    refused(&without("zero"), &["aten::zero", "has no derivative"]);
    // No gradient passes from the inputs alone.
    let outside = Entries::of("functional").edit_nodes(|nodes| {
        let image = std::mem::replace(&mut nodes[0]["inputs"][0]["arg"], tensor("zeros"));
        nodes.insert(0, node("zero.default", json!([{"name": "self", "arg": image}]), "zeros"));
    });
    assert!(load_bytes(&outside.bytes()).is_ok());
}

#[test]
fn autocast_regions_have_no_effect_on_other_devices() {
    let x = expected("regions")["input.x"].shallow_clone();
    let run = |device: &str, kind: i64, enabled: bool| {
        let device = device.to_owned();
        let entries = edit_node("regions", "torch.ops.higher_order.wrap_with_autocast", move |node| {
            node["inputs"][0]["arg"] = json!({"as_string": device});
            node["inputs"][1]["arg"] = json!({"as_scalar_type": kind});
            node["inputs"][2]["arg"] = json!({"as_bool": enabled});
        });
        let (program, _registry) = load_bytes(&entries.bytes()).unwrap();
        let kind = || tch::no_grad(|| program.run(&[&x], true)).map(|outputs| outputs[0].kind()).ok();
        let alone = kind();
        let _outer = dtrain_torch_shim::autocast::Autocast::enter(Device::Cpu, Kind::BFloat16).unwrap();
        (alone, kind())
    };
    let (half, float) = (Some(Kind::BFloat16), Some(Kind::Float));
    // Regions of this device. Without autocast, libtorch refuses products of the half precision around the region.
    assert_eq!(run("cpu", 13, true), (half, half));
    assert_eq!(run("cpu", 13, false), (float, None));
    // Regions of others: the mode around them counts.
    for device in ["cuda", "xpu"] {
        assert_eq!(run(device, 6, false), (float, half), "{device}");
        assert_eq!(run(device, 6, true), (float, half), "{device}");
    }
}
