//! The fields of the data for the inputs of a program.

use std::collections::BTreeMap;

use tch::Kind;

use crate::data::{Field, FieldKind, Numbered};
use crate::models::Port;
use crate::tasks::program_error::Unfit;

/// Returns the usual names of inputs for a field, besides the field's own.
fn usual_names(field: &str) -> &'static [&'static str] {
    match field {
        "image" => &["images", "x", "input", "inputs", "pixel_values"],
        "tokens" => &["input_ids", "idx", "x", "input", "inputs"],
        "label" => &["labels", "y", "target", "targets"],
        "mask" => &["masks", "labels", "y", "target", "targets"],
        "map" => &["maps", "labels", "y", "target", "targets"],
        "targets" => &["target", "labels", "y"],
        "positions" => &["position_ids"],
        _ => &[],
    }
}

/// Returns the field of each input. `stated` are `model.inputs`; the first of `fields` is the sample itself.
pub(in crate::tasks) fn bind(
    inputs: &[Port],
    fields: &[&str],
    stated: &BTreeMap<String, String>,
) -> Result<Vec<String>, Unfit> {
    let known = || inputs.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    if let Some(name) = stated.keys().find(|name| inputs.iter().all(|port| port.name != **name)) {
        return Err(Unfit::NoPort { key: "model.inputs".to_owned(), name: name.clone(), known: known() });
    }
    let field_named = |name: &str| fields.iter().copied().find(|field| *field == name);
    let known = || fields.iter().filter(|field| **field != Numbered::FIELD);
    let owned = || known().map(|field| (*field).to_owned()).collect::<Vec<_>>();
    let bound = |port: &Port| {
        let (input, name) = (port.name.clone(), port.name.as_str());
        if let Some(field) = stated.get(name) {
            let found = field_named(field);
            let found = found.map(str::to_owned);
            return found.ok_or_else(|| Unfit::NoField { input, field: field.clone(), fields: owned() });
        }
        let usual = || fields.iter().copied().find(|field| usual_names(field).contains(&name));
        let only = || fields.first().copied().filter(|_| inputs.len() == 1);
        let found = field_named(name).or_else(usual).or_else(only);
        found.map(str::to_owned).ok_or_else(|| Unfit::Unfed { input, fields: owned() })
    };
    inputs.iter().map(bound).collect()
}

/// Checks that an input takes the values of its field, for batches of any size.
pub(in crate::tasks) fn check(input: &Port, field: &Field) -> Result<(), Unfit> {
    let name = || input.name.clone();
    let (kind, has) = match field.kind {
        FieldKind::F32 => (Kind::Float, "float32"),
        FieldKind::I64 => (Kind::Int64, "int64"),
    };
    if input.kind != kind {
        let takes = format!("{:?}", input.kind).to_lowercase();
        return Err(Unfit::Kind { input: name(), takes, field: field.name.to_string(), has });
    }
    let found: Vec<i64> = field.shape.iter().map(|&length| length as i64).collect();
    let (batch, takes) = input.shape.split_first().unwrap_or((&None, &[]));
    let fits = |(takes, has): (&Option<i64>, &i64)| takes.is_none_or(|takes| takes == *has);
    let same_rank = input.shape.len() == found.len() + 1;
    if !same_rank || !takes.iter().zip(&found).all(fits) {
        return Err(Unfit::Shape {
            input: name(),
            takes: lengths(takes),
            field: field.name.to_string(),
            has: lengths(&found.iter().copied().map(Some).collect::<Vec<_>>()),
            remedy: remedy(&field.name, takes, &found),
        });
    }
    match batch {
        Some(batch) => Err(Unfit::FixedBatch { input: name(), batch: *batch }),
        None => Ok(()),
    }
}

fn remedy(field: &str, takes: &[Option<i64>], has: &[i64]) -> String {
    let of_episode = |members: &str| {
        format!("set data.episodes.n_way and {members}, or import the model again for this number of images")
    };
    match (field, takes, has) {
        (_, [Some(takes), ..], [has, ..]) if takes != has && field.starts_with("support_") => {
            of_episode("k_shot")
        }
        (_, [Some(takes), ..], [has, ..]) if takes != has && field.starts_with("query_") => {
            of_episode("n_query")
        }
        (_, [_, _, _], [count, _, _, _]) => format!(
            "it is a list of {count} images: name one column in data.fields.{field}, or import a model that takes a list"
        ),
        (_, [Some(count), _, _, _], [_, _, _]) => {
            format!("name {count} columns in data.fields.{field}, as \"image:LEFT,RIGHT\"")
        }
        (_, [Some(takes), _, _, _], [count, _, _, _]) if takes != count => {
            format!("name {takes} columns in data.fields.{field}, not {count}")
        }
        ("image", [Some(takes), ..], [has, ..]) if takes != has => {
            format!("set data.channels = {takes}, or import the model again with {has} channels")
        }
        ("image", [_, Some(height), Some(width)], [_, _, side]) if height == width => {
            format!("set data.image_size = {width}, or import the model again with --image-size {side}")
        }
        (
            "tokens" | "targets" | "documents" | "positions" | "attention_mask" | "labels",
            [Some(takes)],
            [_],
        ) => {
            format!("set model.context = {takes}, or import the model again for this length")
        }
        _ => "import the model again for inputs of this shape".to_owned(),
    }
}

/// Formats "3 x 224 x 224"; a dynamic length is "any".
pub(in crate::tasks) fn lengths(shape: &[Option<i64>]) -> String {
    let words: Vec<String> =
        shape.iter().map(|length| length.map_or("any".to_owned(), |length| length.to_string())).collect();
    if words.is_empty() { "one number".to_owned() } else { words.join(" x ") }
}
