//! Warnings about programs that run as they are.

use serde_json::json;

use super::*;

/// Returns the warnings about a file that is loaded.
fn warnings(entries: &Entries) -> Vec<String> {
    load_bytes(&entries.bytes()).unwrap().1.warnings
}

/// Sets the arguments that state whether an operation trains.
fn set_training(program: &mut Value, trains: bool) {
    for node in program["graph"]["nodes"].as_array_mut().unwrap() {
        for input in node["inputs"].as_array_mut().unwrap() {
            if ["training", "train"].contains(&input["name"].as_str().unwrap()) {
                input["arg"] = json!({ "as_bool": trains });
            }
        }
    }
}

#[test]
fn a_program_that_was_exported_in_evaluation_mode_is_warned_of() {
    let imported = Entries::of("classifier");
    assert_eq!(warnings(&imported), [] as [String; 0]);
    let evaluated = imported.edit_program(|program| set_training(program, false));
    // `dtrain import` has compared both programs with the model.
    assert_eq!(warnings(&evaluated), [] as [String; 0]);
    let mut alone = evaluated;
    alone.0.retain(|(name, _)| !name.contains("/extra/"));
    let found = warnings(&alone);
    let [warning] = found.as_slice() else { panic!("{found:?}") };
    assert!(warning.contains("was exported in eval() mode"), "{warning}");
    assert!(warning.contains("export model.train()"), "{warning}");
    let trained = alone.edit_program(|program| set_training(program, true));
    assert_eq!(warnings(&trained), [] as [String; 0]);
}

#[test]
fn an_order_inside_the_batch_is_warned_of_by_module_and_line() {
    let turned = |dim: i64| {
        Entries::of("classifier").edit_nodes(|nodes| {
            let relu =
                nodes.iter_mut().find(|node| node["target"] == "torch.ops.aten.relu_.default").unwrap();
            relu["target"] = "torch.ops.aten.flip.default".into();
            let dims = json!({ "name": "dims", "arg": { "as_ints": [dim] }, "kind": 1 });
            relu["inputs"].as_array_mut().unwrap().push(dims);
        })
    };
    for dim in [0, -4] {
        let found = warnings(&turned(dim));
        let [warning] = found.as_slice() else { panic!("{found:?}") };
        assert!(warning.starts_with("flip in `blocks.0` (make_exported.py:40)"), "{warning}");
        assert!(warning.contains("orders the samples of a batch"), "{warning}");
    }
    assert_eq!(warnings(&turned(1)), [] as [String; 0]);
}
