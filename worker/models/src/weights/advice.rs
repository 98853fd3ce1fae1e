//! Remedies for weights whose names do not fit a model. Each was tried on the names before it is given.

use dtrain_recipe::WeightsMode;

use super::prefix::Change;
use super::{Fit, Renames};
use crate::recognise::UNKNOWN;
use crate::tensor_file::TensorFile;

/// Returns what loads more of the file, in a sentence, from changes of names that were tried. The settings keep the user's own.
pub(super) fn advice(
    file: &TensorFile,
    renames: &Renames,
    plain: &Fit,
    tried: &[(Change, Fit)],
    names_new: bool,
) -> Option<String> {
    if plain.mismatch.is_class_count() {
        return Some(
            "Remove model.weights_mode = \"strict\" to start a training with other classes.".to_owned(),
        );
    }
    // Settings would load a part of the model.
    if let Some(part) = part(file) {
        return Some(part);
    }
    let best = tried.iter().map(|(_, fit)| fit.fitting).max().unwrap_or(0);
    let wanted = plain.wanted;
    let more = |fitting| match plain.mode {
        WeightsMode::Partial => format!("{fitting} instead of {} tensors", plain.fitting),
        _ => format!("{fitting} of the model's {wanted} tensors"),
    };
    // A few names of equal endings are chance.
    if best > plain.fitting && 2 * best >= wanted {
        let equal: Vec<String> = tried
            .iter()
            .filter(|(_, fit)| fit.fitting == best)
            .map(|(change, _)| setting(renames, change))
            .collect();
        let mode = match plain.mode {
            WeightsMode::Partial => "",
            _ => " and model.weights_mode = \"partial\"",
        };
        return Some(format!("Set {}{mode} to load {}.", equal.join(" or "), more(best)));
    }
    if let Some(shapes) = plain.of_variant() {
        return Some(format!(
            "The file is of another variant of the network: {shapes} tensors have a name of the model and another shape, and {} fit. Use \
             weights of the model's variant, or name what may be new in model.weights_new.",
            plain.fitting
        ));
    }
    if names_new {
        return Some("Add what may be new to model.weights_new, or use weights that have it.".to_owned());
    }
    let (is, of) = (&plain.mismatch.model, &plain.mismatch.file);
    if let (Some(_), Some(name)) =
        (is.strip_prefix("a resnet"), of.strip_prefix("a ").filter(|of| of.starts_with("resnet")))
        && is != of
        && !name.contains(' ')
    {
        return Some(format!("Use weights of {is}, or train {of} (model.name = \"{name}\")."));
    }
    let is_variant = plain.mismatch.file == plain.mismatch.model || plain.mismatch.file.contains(UNKNOWN);
    (plain.mode != WeightsMode::Partial && is_variant && 2 * plain.fitting >= wanted).then(|| {
        let fitting = more(plain.fitting);
        format!("Set model.weights_mode = \"partial\" to load {fitting} and initialise the others.")
    })
}

/// Returns the sentence for a file that is called `NAME-00001-of-00003.safetensors`.
pub(super) fn part(file: &TensorFile) -> Option<String> {
    let (number, all) = shard(file)?;
    Some(format!(
        "The file is part {number} of {all}: set model.weights to the index of all parts, such as \
         model.safetensors.index.json."
    ))
}

/// Returns the line of a recipe with the user's pairs and one more.
fn setting(renames: &Renames, change: &Change) -> String {
    let pairs = renames.pairs().into_iter().chain([change.pair()]);
    let pairs: Vec<_> =
        pairs.map(|(pattern, by)| format!("[{}, {}]", quoted(&pattern), quoted(&by))).collect();
    format!("model.weights_rename = [{}]", pairs.join(", "))
}

/// Writes a string of TOML.
fn quoted(text: &str) -> String {
    match text.contains('\'') || text.chars().any(char::is_control) {
        // A string of JSON is one of TOML.
        true => serde_json::Value::from(text).to_string(),
        false => format!("'{text}'"),
    }
}

/// Returns the number of a file that is called `NAME-00001-of-00003.safetensors`, and the number of all.
fn shard(file: &TensorFile) -> Option<(u32, u32)> {
    let stem = file.path().file_stem()?.to_str()?;
    let (before, all) = stem.rsplit_once("-of-")?;
    let (_, number) = before.rsplit_once('-')?;
    let (number, all) = (number.parse().ok()?, all.parse().ok()?);
    (all > 1).then_some((number, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_toml_are_quoted() {
        assert_eq!(quoted(r"^module\."), r"'^module\.'");
        assert_eq!(quoted("it's\\."), r#""it's\\.""#);
    }
}
