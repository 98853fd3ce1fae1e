//! A recipe held against its keys: unknown ones, missing ones and values of the wrong type or range.

use toml::Value;

use super::hints::{describe, nearest, one_of, quoted, unknown};
use super::keys::{Key, Kind, MAX_COUNT, Range};
use super::origin::{Problem, dotted, given};
use super::schema::RECIPE;
use super::{BatchNorm, Best, Every, Task};
use crate::units::{ByteSize, Span};

/// Everything in a recipe that is no key or no value of its key.
pub(super) fn check(recipe: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    section(RECIPE, &[], recipe, &mut problems);
    // A user's own trainer may make its samples without a setting.
    let custom = recipe.get("task").and_then(Value::as_str) == Some(Task::Custom.as_str());
    for (key, needed, remedy) in [
        ("task", true, "write task = \"classify\" above the first section"),
        (
            "data",
            !custom,
            "add [data] with root = \"...\", or with kind = \"generated\"",
        ),
        (
            "ema.decay",
            given(recipe, "ema"),
            "state what the average keeps of itself in a step, for example decay = 0.9999",
        ),
    ] {
        if needed && !given(recipe, key) {
            problems.push(Problem::at(key, format!("missing; {remedy}")));
        }
    }
    problems
}

/// The keys of a section.
fn section(keys: &'static [Key], path: &[String], value: &Value, problems: &mut Vec<Problem>) {
    for (name, value) in value.as_table().into_iter().flatten() {
        let path = [path, std::slice::from_ref(name)].concat();
        let message = match keys.iter().find(|key| key.name == name).map(|key| &key.kind) {
            None => unknown(keys, &path),
            Some(Kind::Section(inner)) if value.is_table() => {
                section(inner, &path, value, problems);
                continue;
            }
            Some(Kind::Section(_)) => {
                format!("expected a section [{}], got {}", dotted(&path), describe(value))
            }
            Some(Kind::Sections(inner, required)) => match value.as_array() {
                Some(list) if list.iter().all(Value::is_table) => {
                    members(inner, *required, &path, list, problems);
                    continue;
                }
                _ => format!("expected sections [[{}]], got {}", dotted(&path), describe(value)),
            },
            Some(kind) => match check_value(kind, value) {
                Ok(()) => continue,
                Err(message) => message,
            },
        };
        problems.push(Problem { path, message });
    }
}

/// The sections of a list, of whose keys the first are required.
fn members(
    keys: &'static [Key],
    required: usize,
    path: &[String],
    list: &[Value],
    problems: &mut Vec<Problem>,
) {
    for (index, value) in list.iter().enumerate() {
        let path = [path, &[format!("[{index}]")]].concat();
        section(keys, &path, value, problems);
        for key in keys[..required]
            .iter()
            .filter(|key| value.get(key.name).is_none())
        {
            let remedy = match key.kind {
                Kind::Name => "give it a name, by which it is told from the others",
                Kind::GlobOrGlobs => {
                    "name the parameters by a glob such as \"backbone.*\", or by a list of them"
                }
                _ => "state after which part it begins, such as 0.5 for the half",
            };
            problems.push(Problem {
                path: [&path[..], &[key.name.to_owned()]].concat(),
                message: format!("missing; {remedy}"),
            });
        }
    }
}

fn check_value(kind: &Kind, value: &Value) -> Result<(), String> {
    match fits(kind, value)? {
        true => Ok(()),
        false => Err(format!("expected {}, got {}", expected(kind), describe(value))),
    }
}

/// Whether the key takes this value; the message of a value that says more than that it does not.
fn fits(kind: &Kind, value: &Value) -> Result<bool, String> {
    let word = value.as_str();
    let all = |test: fn(&Value) -> bool| value.as_array().is_some_and(|list| list.iter().all(test));
    let is_empty = value.as_array().is_none_or(Vec::is_empty);
    Ok(match kind {
        // Their keys are looked at one by one.
        Kind::Section(_) | Kind::Sections(..) => true,
        Kind::Free => match value {
            Value::Table(table) => table.values().try_for_each(finite).map(|()| true)?,
            _ => false,
        },
        Kind::Choice(built, planned) => return chosen(built, planned, value),
        Kind::Whole(min, max) => value
            .as_integer()
            .is_some_and(|number| (*min..=*max).contains(&number)),
        Kind::AutoOrWhole(min, max) => word == Some("auto") || fits(&Kind::Whole(*min, *max), value)?,
        Kind::Number(range) => is_in(*range, value),
        Kind::Numbers(least, most, range) => value.as_array().is_some_and(|list| {
            (*least..=*most).contains(&list.len()) && list.iter().all(|value| is_in(*range, value))
        }),
        Kind::Flag => value.is_bool(),
        Kind::AutoOrFlag => value.is_bool() || word == Some("auto"),
        Kind::Span { zero } => span(value, *zero).map(|()| true)?,
        Kind::Spans => match value.as_array() {
            Some(list) if !list.is_empty() => list
                .iter()
                .try_for_each(|value| span(value, false))
                .map(|()| true)?,
            _ => false,
        },
        Kind::Size(least) => size(value).transpose()?.is_some_and(|bytes| bytes >= *least),
        Kind::Cache => matches!(word, Some("auto" | "off")) || matches!(size(value), Some(Ok(_))),
        Kind::Budget if word == Some("auto") => true,
        Kind::Budget => match size(value) {
            Some(Err(message)) if word.is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit())) => {
                return Err(message);
            }
            other => matches!(other, Some(Ok(bytes)) if bytes > 0),
        },
        Kind::Every => word.map(str::parse::<Every>).transpose()?.is_some(),
        Kind::Best => word.map(str::parse::<Best>).transpose()?.is_some(),
        Kind::BatchNorm => word.map(str::parse::<BatchNorm>).transpose()?.is_some(),
        Kind::Globs => all(is_glob),
        Kind::GlobOrGlobs => is_glob(value) || !is_empty && all(is_glob),
        Kind::Renames => match value.as_array() {
            Some(list) if !list.is_empty() => list.iter().try_for_each(rename).map(|()| true)?,
            _ => false,
        },
        Kind::Name => word.is_some_and(|text| !text.trim().is_empty() && !text.contains(char::is_control)),
        // Whether a glob matches anything is told when there are parameters.
        Kind::Path => is_glob(value),
        Kind::FolderName => word.is_some_and(is_folder_name),
    })
}

/// What a key takes, in words.
fn expected(kind: &Kind) -> String {
    let text = match kind {
        Kind::Choice(built, _) => return one_of(built),
        Kind::Whole(min, max) if *max >= MAX_COUNT => return format!("a whole number of at least {min}"),
        Kind::Whole(min, max) => return format!("a whole number from {min} to {max}"),
        Kind::AutoOrWhole(min, max) => return format!("\"auto\" or {}", expected(&Kind::Whole(*min, *max))),
        Kind::Number(range) => return format!("a number {}", range.describe()),
        Kind::Numbers(least, most, range) if least == most => {
            return format!("a list of {least} numbers, each {}", range.describe());
        }
        Kind::Numbers(_, _, range) => return format!("a list of numbers, each {}", range.describe()),
        Kind::Size(least) => {
            return format!(
                "a size of at least {} such as \"25 MiB\"",
                ByteSize(*least).exact()
            );
        }
        Kind::Section(_) | Kind::Sections(..) => "a section",
        Kind::Free => "a section with the settings of your trainer",
        Kind::Flag => "true or false",
        Kind::AutoOrFlag => "\"auto\", true or false",
        Kind::Span { .. } => "a length of training such as \"5 epochs\" or \"100 steps\"",
        Kind::Spans => "a list of lengths of training such as [\"30 epochs\", \"60 epochs\"]",
        Kind::Cache => "\"auto\", \"off\" or a size such as \"4 GiB\"",
        Kind::Budget => "\"auto\" or a size such as \"14 GiB\"",
        Kind::Every => "a length of training or of time such as \"1 epoch\", \"500 steps\" or \"10 min\"",
        Kind::Best => "max or min and the name of a figure, such as \"max accuracy\"",
        Kind::BatchNorm => "\"local\", \"synced\", or a group of samples such as \"group:16\"",
        Kind::Globs => "a list of globs on the names of parameters, such as [\"backbone.*\"]",
        Kind::GlobOrGlobs => "a glob on the names of parameters, such as \"backbone.*\", or a list of them",
        Kind::Renames => "a list of pairs, such as [[\"^module\\\\.\", \"\"]]",
        Kind::Name => "a name in quotes",
        Kind::Path => "a path in quotes",
        Kind::FolderName => "the name of a folder below data.root, with no `..` and no leading `/`",
    };
    text.into()
}

/// Whether this is one of the words that are built.
fn chosen(built: &[&str], planned: &[&str], value: &Value) -> Result<bool, String> {
    match value.as_str() {
        Some(word) if built.contains(&word) => Ok(true),
        Some(word) if planned.contains(&word) => {
            let built = quoted(built);
            Err(format!(
                "{word:?} is not built in this version of dtrain, which has {built}"
            ))
        }
        word => match word.and_then(|word| nearest(word, built)) {
            None => Ok(false),
            Some(near) => {
                let (built, value) = (one_of(built), describe(value));
                Err(format!("expected {built}, got {value}; did you mean {near:?}?"))
            }
        },
    }
}

/// The bytes of a value that is a number of them or a text; none for a value of another type.
fn size(value: &Value) -> Option<Result<u64, String>> {
    match value {
        Value::Integer(bytes) => u64::try_from(*bytes).ok().map(Ok),
        Value::String(text) => Some(match text.parse::<ByteSize>() {
            // A saved recipe holds no larger whole number.
            Ok(ByteSize(bytes)) if i64::try_from(bytes).is_ok() => Ok(bytes),
            Ok(_) => Err(format!("{text:?} is more memory than there is")),
            Err(error) => Err(error.to_string()),
        }),
        _ => None,
    }
}

/// A regular expression and what takes the place of its matches.
fn rename(pair: &Value) -> Result<(), String> {
    let texts: Option<Vec<&str>> = pair
        .as_array()
        .and_then(|pair| pair.iter().map(Value::as_str).collect());
    let got = describe(pair);
    match texts.as_deref() {
        Some([pattern, _]) => regex_lite::Regex::new(pattern)
            .map(drop)
            .map_err(|error| format!("{pattern:?} is no regular expression: {error}")),
        _ => Err(format!(
            "expected a regular expression and a replacement, such as [\"^module\\\\.\", \"\"], got {got}"
        )),
    }
}

/// Text that can be a glob, or a path.
fn is_glob(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    !text.trim().is_empty() && !text.contains('\0')
}

/// Numbers that are not finite have no form in the manifest of a checkpoint.
fn finite(value: &Value) -> Result<(), String> {
    match value {
        Value::Float(number) if !number.is_finite() => Err(format!(
            "{number} in it cannot be kept with a run; use numbers that are finite"
        )),
        Value::Array(list) => list.iter().try_for_each(finite),
        Value::Table(table) => table.values().try_for_each(finite),
        _ => Ok(()),
    }
}

fn span(value: &Value, zero: bool) -> Result<(), String> {
    let Some(text) = value.as_str() else {
        let expected = expected(&Kind::Span { zero });
        return Err(format!("expected {expected}, got {}", describe(value)));
    };
    let unit = text.split_whitespace().nth(1).unwrap_or_default();
    if ["s", "min", "h", "minutes", "hours", "seconds"].contains(&unit) {
        return Err(format!(
            "{text:?} is a length of time, which only checkpoint.every can be; give it in epochs or steps"
        ));
    }
    match text.parse::<Span>() {
        Err(error) => Err(error.to_string()),
        Ok(span) if span.is_zero() && !zero => {
            Err(format!("{text:?} is no time at all; give at least 1 step"))
        }
        Ok(_) => Ok(()),
    }
}

/// Whether a path stays below the folder that it is joined to.
fn is_folder_name(text: &str) -> bool {
    use std::path::Component;
    let mut parts = std::path::Path::new(text).components().peekable();
    !text.contains('\0') && parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn is_in(range: Range, value: &Value) -> bool {
    let whole = value.as_integer().map(|whole| whole as f64);
    value
        .as_float()
        .or(whole)
        .is_some_and(|number| range.contains(number))
}
