//! A recipe's table held against the schema: unknown keys, missing ones and values of the wrong type or range.

use toml::{Table, Value};

use super::hints::{describe, nearest, one_of, quoted, unknown};
use super::load::given;
use super::origin::{Problem, dotted};
use super::schema::Kind::{
    AutoOrFlag, AutoOrWhole, Cache, Choice, Flag, FolderName, Free, GlobOrGlobs, Globs, Name, Number,
    Numbers, Path, Section, Sections, Size, Spans, Whole,
};
use super::schema::{Key, Kind, MAX_COUNT, RECIPE, Range};
use super::{Best, Every, Task};
use crate::units::{ByteSize, Span};

/// Everything in `table` that is no key of a recipe or no value of its key.
pub(super) fn check(table: &Table) -> Vec<Problem> {
    let mut problems = Vec::new();
    check_section(RECIPE, &[], table, &mut problems);
    if !given(table, "task") {
        problems.push(Problem::at(
            "task",
            "missing; write task = \"classify\" above the first section",
        ));
    }
    // A user's own trainer may make its samples without a setting.
    let custom = table.get("task").and_then(Value::as_str) == Some(Task::Custom.as_str());
    if !given(table, "data") && !custom {
        problems.push(Problem::at(
            "data",
            "missing; add [data] with root = \"...\", or with kind = \"generated\"",
        ));
    }
    if given(table, "ema") && !given(table, "ema.decay") {
        problems.push(Problem::at(
            "ema.decay",
            "missing; state what the average keeps of itself in a step, for example decay = 0.9999",
        ));
    }
    problems
}

fn check_section(keys: &'static [Key], path: &[String], table: &Table, problems: &mut Vec<Problem>) {
    for (name, value) in table {
        let path = below(path, name);
        match keys.iter().find(|key| key.name == name) {
            None => problems.push(Problem {
                message: unknown(keys, &path),
                path,
            }),
            Some(Key {
                kind: Section(inner), ..
            }) => match value {
                Value::Table(table) => check_section(inner, &path, table, problems),
                other => {
                    let message = format!("expected a section [{}], got {}", dotted(&path), describe(other));
                    problems.push(Problem { path, message });
                }
            },
            Some(Key {
                kind: Sections(inner, required),
                ..
            }) => check_sections(inner, *required, &path, value, problems),
            Some(key) => {
                if let Err(message) = check_value(&key.kind, value) {
                    problems.push(Problem { path, message });
                }
            }
        }
    }
}

fn check_sections(
    keys: &'static [Key],
    required: usize,
    path: &[String],
    value: &Value,
    problems: &mut Vec<Problem>,
) {
    let tables: Option<Vec<&Table>> = value
        .as_array()
        .and_then(|list| list.iter().map(Value::as_table).collect());
    let Some(tables) = tables else {
        let message = format!("expected sections [[{}]], got {}", dotted(path), describe(value));
        problems.push(Problem {
            path: path.into(),
            message,
        });
        return;
    };
    for (index, table) in tables.into_iter().enumerate() {
        let path = below(path, &format!("[{index}]"));
        check_section(keys, &path, table, problems);
        for key in keys[..required]
            .iter()
            .filter(|key| !table.contains_key(key.name))
        {
            let remedy = match key.kind {
                Name => "give it a name, by which it is told from the others",
                GlobOrGlobs => "name the parameters by a glob such as \"backbone.*\", or by a list of them",
                _ => "state after which part it begins, such as 0.5 for the half",
            };
            problems.push(Problem {
                path: below(&path, key.name),
                message: format!("missing; {remedy}"),
            });
        }
    }
}

fn below(path: &[String], name: &str) -> Vec<String> {
    path.iter().cloned().chain([name.to_string()]).collect()
}

const NOT_BUILT: &str = "is not built in this version of dtrain";

fn check_value(kind: &Kind, value: &Value) -> Result<(), String> {
    let expected = |what: &str| Err(format!("expected {what}, got {}", describe(value)));
    match kind {
        // These are taken apart elsewhere.
        Section(_) | Sections(..) => Ok(()),
        Free => match value {
            Value::Table(table) => table.values().try_for_each(finite),
            _ => expected("a section with the settings of your trainer"),
        },
        Choice(built, planned) => match value.as_str() {
            Some(word) if built.contains(&word) => Ok(()),
            Some(word) if planned.contains(&word) => {
                Err(format!("{word:?} {NOT_BUILT}, which has {}", quoted(built)))
            }
            Some(word) => {
                let hint = nearest(word, built)
                    .map(|name| format!("; did you mean {name:?}?"))
                    .unwrap_or_default();
                Err(format!(
                    "expected {}, got {}{hint}",
                    one_of(built),
                    describe(value)
                ))
            }
            None => expected(&one_of(built)),
        },
        Whole(min, max) => match value.as_integer() {
            Some(number) if (*min..=*max).contains(&number) => Ok(()),
            _ => expected(&whole(*min, *max)),
        },
        AutoOrWhole(min, max) => match (value.as_integer(), value.as_str()) {
            (Some(number), _) if (*min..=*max).contains(&number) => Ok(()),
            (_, Some("auto")) => Ok(()),
            _ => expected(&format!("\"auto\" or {}", whole(*min, *max))),
        },
        Number(range) => match number(value) {
            Some(number) if range.contains(number) => Ok(()),
            _ => expected(&format!("a number {}", range.describe())),
        },
        Numbers(least, most, range) => match value.as_array() {
            Some(list)
                if (*least..=*most).contains(&list.len())
                    && list.iter().all(|v| number(v).is_some_and(|n| range.contains(n))) =>
            {
                Ok(())
            }
            _ if least == most => expected(&format!("a list of {least} numbers, each {}", range.describe())),
            _ => expected(&format!("a list of numbers, each {}", range.describe())),
        },
        Flag if value.is_bool() => Ok(()),
        Flag => expected("true or false"),
        AutoOrFlag if value.is_bool() || value.as_str() == Some("auto") => Ok(()),
        AutoOrFlag => expected("\"auto\", true or false"),
        Kind::Span { zero } => span(value, *zero),
        Spans => match value.as_array() {
            Some(list) if !list.is_empty() => list.iter().try_for_each(|value| span(value, false)),
            _ => expected("a list of lengths of training such as [\"30 epochs\", \"60 epochs\"]"),
        },
        Size(least) => match size(value) {
            Some(Err(message)) => Err(message),
            Some(Ok(bytes)) if bytes >= *least => Ok(()),
            _ => expected(&format!(
                "a size of at least {} such as \"25 MiB\"",
                ByteSize(*least).exact()
            )),
        },
        Cache => match (value.as_str(), size(value)) {
            (Some("auto" | "off"), _) | (_, Some(Ok(_))) => Ok(()),
            _ => expected("\"auto\", \"off\" or a size such as \"4 GiB\""),
        },
        Kind::Budget => match (value.as_str(), size(value)) {
            (Some("auto"), _) => Ok(()),
            (_, Some(Ok(bytes))) if bytes > 0 => Ok(()),
            (Some(text), Some(Err(message))) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                Err(message)
            }
            _ => expected("\"auto\" or a size such as \"14 GiB\""),
        },
        Kind::Every => match value.as_str() {
            Some(text) => text.parse::<Every>().map(|_| ()),
            None => {
                expected("a length of training or of time such as \"1 epoch\", \"500 steps\" or \"10 min\"")
            }
        },
        Kind::Best => match value.as_str() {
            Some(text) => text.parse::<Best>().map(|_| ()),
            None => expected("max or min and the name of a figure, such as \"max accuracy\""),
        },
        Globs => match value.as_array() {
            Some(list) if list.iter().all(is_glob) => Ok(()),
            _ => expected("a list of globs on the names of parameters, such as [\"backbone.*\"]"),
        },
        GlobOrGlobs => match value {
            Value::Array(list) if !list.is_empty() && list.iter().all(is_glob) => Ok(()),
            one if is_glob(one) => Ok(()),
            _ => expected("a glob on the names of parameters, such as \"backbone.*\", or a list of them"),
        },
        Kind::Renames => match value.as_array() {
            Some(list) if !list.is_empty() => list.iter().try_for_each(rename),
            _ => expected("a list of pairs, such as [[\"^module\\\\.\", \"\"]]"),
        },
        Name => match value.as_str() {
            Some(text) if !text.trim().is_empty() && !text.contains(char::is_control) => Ok(()),
            _ => expected("a name in quotes"),
        },
        Path => match value.as_str() {
            Some(text) if !text.trim().is_empty() && !text.contains('\0') => Ok(()),
            _ => expected("a path in quotes"),
        },
        FolderName => match value.as_str() {
            Some(text) if is_folder_name(text) => Ok(()),
            _ => expected("the name of a folder below data.root, with no `..` and no leading `/`"),
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
    match texts.as_deref() {
        Some([pattern, _]) => regex_lite::Regex::new(pattern)
            .map(drop)
            .map_err(|error| format!("{pattern:?} is no regular expression: {error}")),
        _ => Err(format!(
            "expected a regular expression and a replacement, such as [\"^module\\\\.\", \"\"], got {}",
            describe(pair)
        )),
    }
}

/// Text that can be a glob; whether it is one and matches anything is told when there are parameters.
fn is_glob(value: &Value) -> bool {
    value
        .as_str()
        .is_some_and(|text| !text.trim().is_empty() && !text.contains('\0'))
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
        return Err(format!(
            "expected a length of training such as \"5 epochs\" or \"100 steps\", got {}",
            describe(value)
        ));
    };
    let words: Vec<_> = text.split_whitespace().collect();
    if matches!(
        words[..],
        [_, "s" | "min" | "h" | "minutes" | "hours" | "seconds"]
    ) {
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

impl Range {
    fn contains(self, number: f64) -> bool {
        number.is_finite()
            && match self {
                Self::Any => true,
                Self::AtLeastZero => number >= 0.0,
                Self::AtLeastOne => number >= 1.0,
                Self::AboveZero => number > 0.0,
                Self::BelowOne => (0.0..1.0).contains(&number),
                Self::Inside => number > 0.0 && number < 1.0,
            }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Any => "that is finite",
            Self::AtLeastZero => "of at least 0",
            Self::AtLeastOne => "of at least 1",
            Self::AboveZero => "above 0",
            Self::BelowOne => "of at least 0 and below 1",
            Self::Inside => "above 0 and below 1",
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    value
        .as_float()
        .or_else(|| value.as_integer().map(|whole| whole as f64))
}

fn whole(min: i64, max: i64) -> String {
    if max >= MAX_COUNT {
        format!("a whole number of at least {min}")
    } else {
        format!("a whole number from {min} to {max}")
    }
}
