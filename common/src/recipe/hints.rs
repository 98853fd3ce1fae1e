//! The words of error messages: values, lists and the names that were probably meant.

use toml::Value;

use super::origin::dotted;
use super::schema::{Key, Kind, RECIPE};

pub(super) fn quoted(words: &[&str]) -> String {
    words
        .iter()
        .map(|word| format!("{word:?}"))
        .collect::<Vec<_>>()
        .join(", ")
}

pub(super) fn one_of(words: &[&str]) -> String {
    if words.len() == 1 {
        quoted(words)
    } else {
        format!("one of {}", quoted(words))
    }
}

/// A value in words, short enough for a message.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().count() > 60 => {
            format!(
                "the text {:?}",
                text.chars().take(57).chain("...".chars()).collect::<String>()
            )
        }
        Value::String(text) => format!("the text {text:?}"),
        Value::Integer(number) => format!("the whole number {number}"),
        Value::Float(number) => format!("the number {number:?}"),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(date) => format!("the date {date}"),
        Value::Array(list) if list.len() <= 4 && list.iter().all(|v| v.is_float() || v.is_integer()) => {
            format!("the list {}", Value::Array(list.clone()))
        }
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Table(_) => "a section".into(),
    }
}

/// The message for a key that does not exist: what was meant, or where it belongs, and what there is.
pub(super) fn unknown(keys: &[Key], path: &[String]) -> String {
    let names: Vec<_> = keys.iter().map(|key| key.name).collect();
    let name = path.last().map_or("", String::as_str);
    let near = nearest(name, &names).or_else(|| alias(name).filter(|alias| names.contains(alias)));
    let hint = match (near, homes(name).as_slice()) {
        (Some(near), _) => format!("; did you mean `{near}`?"),
        (None, [home]) => format!("; it belongs in {home}"),
        (None, []) => String::new(),
        (None, homes) => format!("; it belongs in one of {}", homes.join(", ")),
    };
    let place = match path {
        [] | [_] => "a recipe".to_string(),
        [parents @ .., last, _] if last.starts_with('[') => format!("[[{}]]", dotted(parents)),
        [parents @ .., _] => format!("[{}]", dotted(parents)),
    };
    let end = if hint.ends_with('?') { "" } else { ";" };
    format!("unknown key{hint}{end} {place} takes {}", names.join(", "))
}

/// What other programs call some of these keys.
fn alias(name: &str) -> Option<&'static str> {
    match name {
        "batch" | "batch_size" | "global_batch_size" => Some("effective_batch"),
        "learning_rate" => Some("lr"),
        "optimizer" => Some("optim"),
        "num_workers" => Some("workers"),
        "grad_clip" | "clip_grad_norm" | "max_grad_norm" => Some("clip"),
        "num_classes" => Some("classes"),
        "img_size" | "resolution" => Some("image_size"),
        "in_channels" => Some("channels"),
        "ignore_index" => Some("ignore"),
        "block_size" | "seq_len" => Some("context"),
        "sync_bn" | "sync_batchnorm" => Some("batchnorm"),
        "params" => Some("match"),
        "step_size" => Some("every"),
        "pct_start" => Some("rise"),
        "div_factor" => Some("start_factor"),
        "final_div_factor" => Some("final_factor"),
        "eta_min" => Some("min_lr"),
        "bucket_cap_mb" => Some("bucket"),
        _ => None,
    }
}

/// The sections that have a key of this name, as they stand in a recipe.
fn homes(name: &str) -> Vec<String> {
    fn visit(keys: &[Key], path: &str, name: &str, found: &mut Vec<String>) {
        for key in keys {
            let path = format!("{path}{}", key.name);
            let (inner, home) = match key.kind {
                Kind::Section(inner) => (inner, format!("[{path}]")),
                Kind::Sections(inner, _) => (inner, format!("[[{path}]]")),
                _ => continue,
            };
            if inner.iter().any(|key| key.name == name) {
                found.push(home);
            }
            visit(inner, &format!("{path}."), name, found);
        }
    }
    let mut found = Vec::new();
    visit(RECIPE, "", name, &mut found);
    // What a stage may state in place of another section's has its home there.
    let of_stages = |home: &String| home.starts_with("[[stage");
    if !found.iter().all(of_stages) {
        found.retain(|home| !of_stages(home));
    }
    found
}

/// The known name nearest to `name`, if any is near: at most one slip in every three letters, or its beginning.
pub(super) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = name.to_lowercase().replace('-', "_");
    let near = |candidate: &str| {
        let distance = strsim::osa_distance(&lower, candidate);
        let beginning = lower.len() >= 3 && candidate.starts_with(&lower);
        (beginning || distance <= (candidate.chars().count() / 3).max(1)).then_some(distance)
    };
    let distances = known
        .iter()
        .filter_map(|candidate| near(candidate).map(|distance| (distance, *candidate)));
    distances
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}
