//! Words for error messages: values, lists and suggestions of names.

use toml::Value;

pub fn quoted(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
    words.join(", ")
}

/// Lists words in quotes, with "and" between them.
pub fn and(words: &[&str]) -> String {
    quoted(words).replace(", ", " and ")
}

pub fn one_of(words: &[&str]) -> String {
    let of = if words.len() == 1 { "" } else { "one of " };
    format!("{of}{}", quoted(words))
}

pub fn describe(value: &Value) -> String {
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

/// Returns the closest known name: at most one typing error for every three letters, or a prefix.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = name.to_lowercase().replace('-', "_");
    let near = |candidate: &&'a str| {
        let distance = strsim::osa_distance(&lower, candidate);
        let beginning = lower.len() >= 3 && candidate.starts_with(&lower);
        (beginning || distance <= (candidate.chars().count() / 3).max(1)).then_some((distance, *candidate))
    };
    known.iter().filter_map(near).min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}
