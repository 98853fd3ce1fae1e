//! The words of error messages: values, lists and the names that were probably meant.

use toml::Value;

use super::keys::{Key, Kind};
use super::origin::dotted;
use super::schema::RECIPE;

pub(super) fn quoted(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    words.join(", ")
}

pub(super) fn one_of(words: &[&str]) -> String {
    let of = if words.len() == 1 { "" } else { "one of " };
    format!("{of}{}", quoted(words))
}

/// A value in words, short enough for a message.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().count() > 60 => {
            format!("the text {:?}", text.chars().take(57).collect::<String>() + "...")
        }
        Value::String(text) => format!("the text {text:?}"),
        Value::Integer(number) => format!("the whole number {number}"),
        Value::Float(number) => format!("the number {number:?}"),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(date) => format!("the date {date}"),
        Value::Array(list) if list.len() <= 4 && list.iter().all(|v| v.is_float() || v.is_integer()) => {
            format!("the list {value}")
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
        (None, [home]) => format!("; it belongs in {home};"),
        (None, []) => ";".to_owned(),
        (None, homes) => format!("; it belongs in one of {};", homes.join(", ")),
    };
    let place = match path {
        [] | [_] => "a recipe".to_owned(),
        [parents @ .., last, _] if last.starts_with('[') => format!("[[{}]]", dotted(parents)),
        [parents @ .., _] => format!("[{}]", dotted(parents)),
    };
    format!("unknown key{hint} {place} takes {}", names.join(", "))
}

/// What other programs call some of these keys.
const ALIASES: &[(&str, &[&str])] = &[
    ("effective_batch", &["batch", "batch_size", "global_batch_size"]),
    ("lr", &["learning_rate"]),
    ("optim", &["optimizer"]),
    ("workers", &["num_workers"]),
    ("clip", &["grad_clip", "clip_grad_norm", "max_grad_norm"]),
    ("classes", &["num_classes"]),
    ("image_size", &["img_size", "resolution"]),
    ("channels", &["in_channels"]),
    ("ignore", &["ignore_index"]),
    ("context", &["block_size", "seq_len"]),
    ("batchnorm", &["sync_bn", "sync_batchnorm"]),
    ("match", &["params"]),
    ("every", &["step_size"]),
    ("rise", &["pct_start"]),
    ("start_factor", &["div_factor"]),
    ("final_factor", &["final_div_factor"]),
    ("min_lr", &["eta_min"]),
    ("bucket", &["bucket_cap_mb"]),
];

fn alias(name: &str) -> Option<&'static str> {
    let known = ALIASES.iter().find(|(_, aliases)| aliases.contains(&name))?;
    Some(known.0)
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
    let near = |candidate: &&'a str| {
        let distance = strsim::osa_distance(&lower, candidate);
        let beginning = lower.len() >= 3 && candidate.starts_with(&lower);
        (beginning || distance <= (candidate.chars().count() / 3).max(1)).then_some((distance, *candidate))
    };
    let nearest = known
        .iter()
        .filter_map(near)
        .min_by_key(|(distance, _)| *distance);
    nearest.map(|(_, candidate)| candidate)
}
