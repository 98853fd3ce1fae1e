//! Checks that a program which computes its own loss knows all classes and tokens of the data: its loss would read beyond its tables.

use super::figures::known_classes;
use super::network::{MAIN_OUTPUTS, Network, unfit_output};
use super::samples::Sets;
use super::{Mode, TaskError};
use crate::data::FieldKind;
use crate::models::Port;
use crate::tensors::is_floating;

/// Checks the logits of tokens, N x T x V, and those of the class that the program takes, N x K.
///
/// # Errors
/// Fewer logits than the vocabulary has tokens, or than the field has classes.
pub(super) fn check(network: &Network, sets: &Sets, has_episodes: bool) -> Result<(), TaskError> {
    let ports = network.ports(Mode::Evaluate);
    let vocabulary = sets.classes_of_text();
    let small = |port: &&Port| {
        port.name == MAIN_OUTPUTS[0] && matches!(port.shape[..], [_, _, Some(v)] if v < vocabulary as i64)
    };
    if let Some(port) = ports.iter().find(small) {
        let needs = format!(
            "the vocabulary has {vocabulary} tokens; name the tokenizer of the model, or import the model again with this vocabulary"
        );
        return Err(network.unfit(unfit_output(port, &needs)));
    }
    // An episode has other classes, and a prediction no labels.
    if has_episodes || sets.predicts {
        return Ok(());
    }
    let Some((field, classes)) = class(network.fields(), sets) else { return Ok(()) };
    if let Some(port) = ports.iter().find(|port| has_fewer(port, classes)) {
        let needs = format!(
            "the field `{field}` has {classes} classes; import the model again with as many, or give the output another name if it \
             holds no logits"
        );
        return Err(network.unfit(unfit_output(port, &needs)));
    }
    Ok(())
}

/// Returns the field with a class for each sample that the program takes, and the number of its classes: `label`, else the only one.
fn class<'a>(taken: &'a [String], sets: &Sets) -> Option<(&'a str, usize)> {
    let is_class = |name: &str| {
        let mut fields = sets.train.fields().iter();
        fields.any(|field| field.name == name && field.kind == FieldKind::I64 && field.shape.is_empty())
    };
    let with_classes = |name: &'a String| Some((name.as_str(), known_classes(name, sets)?));
    let all: Vec<_> = taken.iter().filter(|name| is_class(name)).filter_map(with_classes).collect();
    match all[..] {
        [only] => Some(only),
        _ => all.into_iter().find(|(name, _)| *name == "label"),
    }
}

/// Returns whether an output with a usual name of logits has fewer of them.
fn has_fewer(port: &Port, classes: usize) -> bool {
    let is_fewer = matches!(port.shape[..], [None, Some(k)] if k < classes as i64);
    is_fewer && is_floating(port.kind) && MAIN_OUTPUTS.contains(&port.name.as_str())
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    #[test]
    fn logits_of_fewer_classes_are_found_by_name_and_shape() {
        let fewer = |name: &str, kind, shape: &[Option<i64>]| {
            has_fewer(&Port { name: name.into(), kind, shape: shape.to_vec() }, 80)
        };
        let logits = [None, Some(20)];
        assert!(fewer("logits", Kind::Float, &logits) && fewer("output", Kind::Half, &logits));
        assert!(!fewer("embeds", Kind::Float, &logits) && !fewer("out", Kind::Int64, &logits));
        assert!(
            !fewer("logits", Kind::Float, &[None, Some(80)]) && !fewer("logits", Kind::Float, &[None, None])
        );
        assert!(!fewer("logits", Kind::Float, &[None, Some(2), Some(8), Some(8)]));
    }
}
