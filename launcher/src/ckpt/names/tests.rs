#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use super::*;

type Shapes = BTreeMap<String, Vec<u64>>;

/// Reads `tests/parity/reference/names.json`: each model's tensor names and shapes, by program.
fn reference() -> BTreeMap<String, BTreeMap<String, Shapes>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity/reference/names.json");
    let text = std::fs::read_to_string(path).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(json["models"].take()).unwrap()
}

fn shape(form: Form, own: &[u64]) -> Vec<u64> {
    let mut shape = own.to_vec();
    match form {
        Form::Same => {}
        Form::Transposed => shape.reverse(),
        Form::Third(_) => shape[0] /= 3,
    }
    shape
}

/// The names and shapes are exactly those of the other programs' models.
#[test]
fn the_names_are_those_of_the_other_programs() {
    let mut compared = 0;
    for (model, lists) in reference() {
        let own = &lists["pytorch"];
        for names in [Names::Pytorch, Names::Torchvision, Names::Timm, Names::Huggingface] {
            let Some(theirs) = lists.get(&names.to_string()) else {
                let any = own.keys().next().unwrap();
                let error = rename(names, &model, any).unwrap_err();
                assert!(error.to_string().contains("has no model like"), "{error}");
                continue;
            };
            let mut made = Shapes::new();
            for (name, own) in own {
                for piece in rename(names, &model, name).unwrap() {
                    assert_eq!(made.insert(piece.name, shape(piece.form, own)), None);
                }
            }
            assert_eq!(made, *theirs, "{model} {names}");
            compared += theirs.len();
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
fn names_without_a_counterpart_are_errors() {
    let error = rename(Names::Timm, "unet", "inc.double_conv.0.weight").unwrap_err();
    assert_eq!(
        error.to_string(),
        "timm has no model like \"unet\"; these have: resnet18 to resnet152 and vit. `--names pytorch` keeps the checkpoint's own \
         names"
    );
    let error = rename(Names::Huggingface, "gpt2.pt2", "transformer.wte.weight").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the tensors of gpt2.pt2 have the names of the imported module already; leave out --names huggingface"
    );
    for (names, model, tensor) in [
        (Names::Timm, "resnet18", "neck.weight"),
        (Names::Torchvision, "resnet18", "layer0.0.conv1.weight"),
        (Names::Huggingface, "resnet18", "layer1.x.conv1.weight"),
        (Names::Huggingface, "resnet18", "layer1.0.conv0.weight"),
        (Names::Huggingface, "resnet18", "layer1.0.downsample.2.weight"),
        (Names::Huggingface, "resnet18", "conv2.weight"),
        (Names::Huggingface, "resnet18", ""),
        (Names::Huggingface, "vit", "blocks.0.attn.qkv"),
        (Names::Huggingface, "vit", "dist_token"),
        (Names::Torchvision, "vit", "blocks.+1.norm1.weight"),
        (Names::Huggingface, "gpt", "lm_head.weight"),
        (Names::Huggingface, "gpt", "transformer.h.0.attn.bias"),
    ] {
        let error = rename(names, model, tensor).unwrap_err();
        assert!(error.to_string().contains("has no counterpart in"), "{tensor:?}: {error}");
    }
}
