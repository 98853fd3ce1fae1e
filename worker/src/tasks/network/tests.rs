#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use tch::Kind;

use super::binding::{bind, check};
use super::outputs::choose;
use super::*;
use crate::data::Normalize;

fn port(name: &str, kind: Kind, shape: &[Option<i64>]) -> Port {
    Port { name: name.into(), kind, shape: shape.to_vec() }
}

fn float(name: &str) -> Port {
    port(name, Kind::Float, &[None, Some(3), Some(32), Some(32)])
}

fn stated(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(name, field)| (name.to_string(), field.to_string())).collect()
}

const CLASSES: [&str; 2] = ["image", "label"];

#[test]
fn inputs_take_fields_by_name() {
    for (fields, inputs, stated_inputs, expected) in [
        (CLASSES, vec!["pixel_values"], vec![], vec!["image"]),
        (CLASSES, vec!["labels", "x"], vec![], vec!["label", "image"]),
        (CLASSES, vec!["anything"], vec![], vec!["image"]),
        (CLASSES, vec!["label"], vec![], vec!["label"]),
        (CLASSES, vec!["a", "b"], vec![("a", "label"), ("b", "image")], vec!["label", "image"]),
        (CLASSES, vec!["image"], vec![("image", "label")], vec!["label"]),
        (["image", "mask"], vec!["images", "labels"], vec![], vec!["image", "mask"]),
        (["image", "map"], vec!["input", "target"], vec![], vec!["image", "map"]),
        (["image", "targets"], vec!["inputs", "y"], vec![], vec!["image", "targets"]),
        (["tokens", "targets"], vec!["idx", "targets"], vec![], vec!["tokens", "targets"]),
        (
            ["tokens", "targets"],
            vec!["input_ids", "labels"],
            vec![("labels", "tokens")],
            vec!["tokens", "tokens"],
        ),
    ] {
        let ports: Vec<_> = inputs.iter().map(|name| float(name)).collect();
        assert_eq!(bind(&ports, &fields, &stated(&stated_inputs)).unwrap(), expected, "{inputs:?}");
    }
}

#[test]
fn documents_and_positions_are_inputs_by_name() {
    let fields = ["tokens", "targets", "documents", "positions"];
    for inputs in
        [["idx", "targets", "documents", "positions"], ["input_ids", "labels", "documents", "position_ids"]]
    {
        let ports = inputs.map(float);
        assert_eq!(bind(&ports, &fields, &stated(&[])).unwrap(), fields, "{inputs:?}");
    }
}

#[test]
fn an_input_without_a_field_is_an_error_with_a_remedy() {
    let said = |inputs: &[&str], entries: &[(&str, &str)]| {
        let ports: Vec<_> = inputs.iter().map(|name| float(name)).collect();
        bind(&ports, &CLASSES, &stated(entries)).unwrap_err().to_string()
    };
    let text = said(&["x", "attention_mask"], &[]);
    assert!(
        text.contains("feeds the input `attention_mask`: the data has `image`, `label`; set model.inputs"),
        "{text}"
    );
    let text = said(&["x"], &[("x", "mask")]);
    assert!(
        text.contains("feeds `x` from \"mask\", which the data lacks; it has `image`, `label`"),
        "{text}"
    );
    let text = said(&["pixel_values", "labels"], &[("pixel_value", "image")]);
    assert!(text.contains("did you mean `pixel_values`? it has `pixel_values`, `labels`"), "{text}");
    let text = said(&["x"], &[("quite_other", "image")]);
    assert!(text.contains("which the program lacks; it has `x`"), "{text}");
}

#[test]
fn inputs_fit_the_fields_of_the_data() {
    let image = Field::image("image", [3, 32, 32], Normalize::default());
    let (label, tokens) = (Field::i64("label", []), Field::i64("tokens", [64]));
    let any = [None, Some(3), None, None];
    for (input, field) in [
        (float("x"), &image),
        (port("x", Kind::Float, &any), &image),
        (port("y", Kind::Int64, &[None]), &label),
        (port("idx", Kind::Int64, &[None, None]), &tokens),
    ] {
        check(&input, field).unwrap();
    }
    let large = [None, Some(3), Some(224), Some(224)];
    for (kind, shape, field, part) in [
        (
            Kind::Float,
            &large[..],
            &image,
            "takes 3 x 224 x 224 for each sample, but the field `image` of the data has 3 x 32 x 32",
        ),
        (
            Kind::Float,
            &large,
            &image,
            "set data.image_size = 224, or import the model again with --image-size 32",
        ),
        (Kind::Float, &[None, Some(1), None, None], &image, "takes 1 x any x any"),
        (Kind::Float, &[None, Some(1), None, None], &image, "set data.channels = 1"),
        (Kind::Half, &any, &image, "takes half, but the field `image` of the data is float32"),
        (Kind::Float, &[None], &label, "takes float, but the field `label` of the data is int64"),
        (
            Kind::Float,
            &[Some(8), Some(3), Some(32), Some(32)],
            &image,
            "has a fixed batch of 8; import the model again",
        ),
        (Kind::Int64, &[None, Some(128)], &tokens, "set model.context = 128"),
        (
            Kind::Int64,
            &[None, Some(1)],
            &label,
            "takes 1 for each sample, but the field `label` of the data has one number",
        ),
        (Kind::Int64, &[], &label, "import the model again for inputs of this shape"),
    ] {
        let text = check(&port("x", kind, shape), field).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn the_main_output_is_stated_alone_or_usual() {
    let auxiliary = |names: &[&str]| names.iter().map(|name| (name.to_string(), 0.4)).collect();
    let chosen = |names: &[&str], stated, others: &[&str]| {
        let ports: Vec<_> = names.iter().map(|name| float(name)).collect();
        choose(&ports, stated, &MAIN_OUTPUTS, &auxiliary(others))
    };
    let main = |at, auxiliary: &[usize]| {
        Ok(Chosen { main: at, auxiliary: auxiliary.iter().map(|at| (*at, 0.4)).collect() })
    };
    assert_eq!(chosen(&["anything"], None, &[]), main(0, &[]));
    assert_eq!(chosen(&["aux", "out"], None, &["aux"]), main(1, &[0]));
    assert_eq!(chosen(&["output", "logits"], None, &[]), main(1, &[]));
    assert_eq!(chosen(&["a", "b"], Some("b"), &[]), main(1, &[]));
    for (names, stated, others, part) in [
        (&["a", "b"][..], None, &[][..], "the program has `a`, `b`; set model.output"),
        (&["a", "b"], Some("c"), &[], "model.output names \"c\", which the program lacks; it has `a`, `b`"),
        (
            &["out", "aux"],
            None,
            &["auxx"],
            "model.auxiliary names \"auxx\", which the program lacks; did you mean `aux`?",
        ),
        (&[], None, &[], "the program has no outputs"),
    ] {
        let text = chosen(names, stated, others).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn outputs_of_another_shape_are_errors_that_name_it() {
    let said = |kind, shape: &[Option<i64>]| {
        let fits = |shape: &[Option<i64>]| matches!(shape, [None, Some(10..)]);
        outputs::check(&port("logits", kind, shape), "the task needs N x 10; do this", &fits)
            .map_err(|it| it.to_string())
    };
    assert_eq!(said(Kind::BFloat16, &[None, Some(12)]), Ok(()));
    for (kind, shape, words) in [
        (Kind::Float, &[None, Some(5)][..], "N x 5"),
        (Kind::Float, &[None, Some(10), None], "N x 10 x any"),
        (Kind::Float, &[None], "N"),
        (Kind::Float, &[], "of a scalar"),
        (Kind::Float, &[Some(8), Some(10)], "8 x 10"),
        (Kind::Int64, &[None, Some(10)], "N x 10 of int64"),
    ] {
        let text = said(kind, shape).unwrap_err();
        let expected = format!(
            "the output `logits` has the shape {words} for N samples, but the task needs N x 10; do this"
        );
        assert_eq!(text, expected);
    }
}

#[test]
fn lengths_up_to_the_image_s_are_enlarged() {
    assert!(enlarges(Some(8), 8) && enlarges(Some(1), 8) && enlarges(None, 8));
    assert!(!enlarges(Some(9), 8) && !enlarges(Some(0), 8));
}
