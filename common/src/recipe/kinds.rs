//! The kinds of values that keys take, and their checks.

use std::str::FromStr;

use serde_json::{Value as Json, json};
use toml::Value;

use super::hints::{describe, nearest, one_of};
use super::{Best, Every, TracedSteps};
use crate::units::{ByteSize, Span};

/// A check of a value: `Ok(false)` if the key does not take it, or an error with a specific message.
pub type Check = fn(&Value) -> Result<bool, String>;

/// A key of a section.
#[derive(Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// What it means, in one or two sentences.
    pub about: &'static str,
}

/// What a key takes.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A section with these keys.
    Section(&'static [Key]),
    /// A list of sections with these keys; the first n keys are required.
    Sections(&'static [Key], usize),
    /// A list of sections, each with the keys of its `name`.
    Named(&'static [Named]),
    /// A section with any keys.
    Free,
    /// One of these words; the second list has words of other versions, each with what became of it.
    Choice(&'static [&'static str], &'static [(&'static str, &'static str)]),
    Whole(i64, i64),
    AutoOrWhole(i64, i64),
    Number(Range),
    /// A list of numbers in this range; its length is between the two counts.
    Numbers(usize, usize, Range),
    /// A number of bytes, of at least this many.
    Size(u64),
    /// Any other kind, with its description and its types in JSON.
    Other(&'static str, &'static [&'static str], Check),
    /// Any other kind, with its description and the JSON Schema of its values.
    Shaped(&'static str, fn() -> Json, Check),
}

/// The keys of a section with this name.
#[derive(Clone, Copy)]
pub struct Named {
    pub name: &'static str,
    pub keys: &'static [Key],
}

/// Larger than any real batch or data set; keeps products of counts far from overflow.
const MAX_COUNT: i64 = 1 << 40;
/// A number of samples, steps or epochs.
pub const COUNT: Kind = Kind::Whole(1, MAX_COUNT);
/// A number of samples, or "auto".
pub const AUTO_OR_COUNT: Kind = Kind::AutoOrWhole(1, MAX_COUNT);
pub const RATE: Kind = Kind::Number(Range::AT_LEAST_ZERO);
pub const PART: Kind = Kind::Number(Range::INSIDE);
pub const FLAG: Kind = Kind::Other("true or false", &["boolean"], |value| Ok(value.is_bool()));
pub const AUTO_OR_FLAG: Kind = Kind::Shaped(
    "\"auto\", true or false",
    || json!({"enum": ["auto", true, false]}),
    |value| Ok(value.is_bool() || value.as_str() == Some("auto")),
);
const A_SPAN: &str = "a length of training such as \"5 epochs\" or \"100 steps\"";
/// A length of training, not zero.
pub const SPAN: Kind = Kind::Other(A_SPAN, &["string"], |value| span(value, false));
/// A length of training, which may be zero.
pub const SPAN_OR_NONE: Kind = Kind::Other(A_SPAN, &["string"], |value| span(value, true));
/// At least one length of training, none of them zero.
pub const SPANS: Kind = Kind::Other(
    "a list of lengths of training such as [\"30 epochs\", \"60 epochs\"]",
    &["array"],
    |value| each(value, |value| check(&SPAN, value)),
);
/// A length of training or of time, not zero.
pub const EVERY: Kind = Kind::Other(
    "a length of training or of time such as \"1 epoch\", \"500 steps\" or \"10 min\"",
    &["string"],
    parsed::<Every>,
);
pub const BEST: Kind =
    Kind::Other("max or min and the name of a figure, such as \"max accuracy\"", &["string"], parsed::<Best>);
pub const TRACED: Kind =
    Kind::Other("steps such as \"10-12\" or \"10\", counted from 1", &["string"], parsed::<TracedSteps>);
pub const CACHE: Kind = Kind::Shaped(
    "\"auto\", \"off\" or a size such as \"4 GiB\"",
    || word_or(&["auto", "off"], json!({"type": ["string", "integer"]})),
    |value| Ok(matches!(value.as_str(), Some("auto" | "off")) || matches!(size(value), Some(Ok(_)))),
);
pub const BUDGET: Kind = Kind::Shaped(
    "\"auto\" or a size such as \"14 GiB\"",
    || word_or(&["auto"], json!({"type": ["string", "integer"]})),
    |value| {
        let word = value.as_str().unwrap_or_default();
        match size(value) {
            _ if word == "auto" => Ok(true),
            Some(Err(message)) if word.starts_with(|c: char| c.is_ascii_digit()) => Err(message),
            bytes => Ok(matches!(bytes, Some(Ok(1..)))),
        }
    },
);
/// One glob on the names of parameters, or a list of them, possibly none.
pub const GLOBS: Kind = Kind::Other(
    "a list of globs on the names of parameters, such as [\"backbone.*\"], or one glob",
    &["array", "string"],
    |value| Ok(is_glob(value) || value.as_array().is_some_and(|list| list.iter().all(is_glob))),
);
/// One glob, or a list of at least one.
pub const GLOB_OR_GLOBS: Kind = Kind::Other(
    "a glob on the names of parameters, such as \"backbone.*\", or a list of them",
    &["string", "array"],
    |value| {
        let all = |list: &Vec<Value>| !list.is_empty() && list.iter().all(is_glob);
        Ok(is_glob(value) || value.as_array().is_some_and(all))
    },
);
pub const NAME: Kind = Kind::Other("a name in quotes", &["string"], |value| {
    let is_name = |text: &str| !text.trim().is_empty() && !text.contains(char::is_control);
    Ok(value.as_str().is_some_and(is_name))
});
pub const COMMAND: Kind = Kind::Other("a shell command in quotes", &["string"], |value| {
    let is_command = |text: &str| !text.trim().is_empty() && !text.contains('\0');
    Ok(value.as_str().is_some_and(is_command))
});
/// A list of names, possibly empty.
pub const NAME_LIST: Kind =
    Kind::Other("a list of names, such as [\"accuracy\"]", &["array"], |value| match value.as_array() {
        Some(list) => list.iter().try_for_each(|value| check(&NAME, value)).map(|()| true),
        None => Ok(false),
    });
/// A table of names, not empty.
pub const NAMES: Kind =
    Kind::Other("a table of names, such as { pixel_values = \"image\" }", &["object"], |value| {
        each_entry(value, |value| check(&NAME, value))
    });
/// A table of weights, not empty.
pub const WEIGHTS: Kind = Kind::Other("a table of weights, such as { aux = 0.4 }", &["object"], |value| {
    each_entry(value, |value| check(&RATE, value))
});
/// Paths, at least one.
pub const PATHS: Kind = Kind::Other("a list of paths, such as [\"operations.so\"]", &["array"], |value| {
    each(value, |value| check(&PATH, value))
});
pub const PATH: Kind = Kind::Other("a path in quotes", &["string"], |value| Ok(is_glob(value)));

/// Returns the JSON Schema of one of these words, which editors offer, or of another value.
pub fn word_or(words: &[&str], other: Json) -> Json {
    json!({"anyOf": [{"enum": words}, other]})
}

/// One of these words.
pub const fn choice(words: &'static [&'static str]) -> Kind {
    Kind::Choice(words, &[])
}

/// A range of finite numbers.
#[derive(Clone, Copy)]
pub struct Range {
    words: &'static str,
    pub(super) least: Limit,
    pub(super) most: Limit,
}

/// An end of a range.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    None,
    At(f64),
    /// Without the number itself.
    Before(f64),
}

impl Range {
    pub const ANY: Self = Self::new("that is finite", Limit::None, Limit::None);
    pub const AT_LEAST_ZERO: Self = Self::new("of at least 0", Limit::At(0.0), Limit::None);
    pub const AT_LEAST_ONE: Self = Self::new("of at least 1", Limit::At(1.0), Limit::None);
    pub const ABOVE_ZERO: Self = Self::new("above 0", Limit::Before(0.0), Limit::None);
    pub const BELOW_ONE: Self = Self::new("of at least 0 and below 1", Limit::At(0.0), Limit::Before(1.0));
    pub const UP_TO_ONE: Self = Self::new("above 0 and up to 1", Limit::Before(0.0), Limit::At(1.0));
    pub const INSIDE: Self = Self::new("above 0 and below 1", Limit::Before(0.0), Limit::Before(1.0));

    const fn new(words: &'static str, least: Limit, most: Limit) -> Self {
        Self { words, least, most }
    }

    fn contains(self, value: &Value) -> bool {
        let number = value.as_float().or(value.as_integer().map(|whole| whole as f64));
        number.is_some_and(|number| {
            let is_above = match self.least {
                Limit::None => true,
                Limit::At(least) => number >= least,
                Limit::Before(least) => number > least,
            };
            let is_below = match self.most {
                Limit::None => true,
                Limit::At(most) => number <= most,
                Limit::Before(most) => number < most,
            };
            number.is_finite() && is_above && is_below
        })
    }
}

/// Returns why a value is not of this kind.
pub fn check(kind: &Kind, value: &Value) -> Result<(), String> {
    match fits(kind, value)? {
        true => Ok(()),
        false => Err(format!("expected {}, got {}", expected(kind), describe(value))),
    }
}

fn fits(kind: &Kind, value: &Value) -> Result<bool, String> {
    let is_whole =
        |min: i64, max: i64| value.as_integer().is_some_and(|number| (min..=max).contains(&number));
    Ok(match *kind {
        // The keys of a section are checked one by one.
        Kind::Section(_) | Kind::Sections(..) | Kind::Named(_) => true,
        Kind::Free => {
            let table = value.as_table();
            table.map(|table| table.values().try_for_each(finite)).transpose()?.is_some()
        }
        Kind::Choice(built, others) => return check_choice(built, others, value),
        Kind::Whole(min, max) => is_whole(min, max),
        Kind::AutoOrWhole(min, max) => value.as_str() == Some("auto") || is_whole(min, max),
        Kind::Number(range) => range.contains(value),
        Kind::Numbers(least, most, range) => value.as_array().is_some_and(|list| {
            (least..=most).contains(&list.len()) && list.iter().all(|value| range.contains(value))
        }),
        Kind::Size(least) => size(value).transpose()?.is_some_and(|bytes| bytes >= least),
        Kind::Other(_, _, fits) | Kind::Shaped(_, _, fits) => return fits(value),
    })
}

fn expected(kind: &Kind) -> String {
    match *kind {
        Kind::Section(_) | Kind::Sections(..) | Kind::Named(_) => "a section".into(),
        Kind::Free => "a section with the settings of your trainer".into(),
        Kind::Choice(built, _) => one_of(built),
        Kind::Whole(min, MAX_COUNT..) => format!("a whole number of at least {min}"),
        Kind::Whole(min, max) => format!("a whole number from {min} to {max}"),
        Kind::AutoOrWhole(min, max) => format!("\"auto\" or {}", expected(&Kind::Whole(min, max))),
        Kind::Number(range) => format!("a number {}", range.words),
        Kind::Numbers(least, most, range) if least == most => {
            format!("a list of {least} numbers, each {}", range.words)
        }
        Kind::Numbers(_, _, range) => format!("a list of numbers, each {}", range.words),
        Kind::Size(least) => format!("a size of at least {} such as \"25 MiB\"", ByteSize(least).exact()),
        Kind::Other(words, ..) | Kind::Shaped(words, ..) => words.into(),
    }
}

/// What became of a word of a later version.
pub const PLANNED: &str = "is not built in this version of dtrain";

/// Returns whether this is one of the words that are built.
fn check_choice(built: &[&str], others: &[(&str, &str)], value: &Value) -> Result<bool, String> {
    let Some(word) = value.as_str() else { return Ok(false) };
    if built.contains(&word) {
        return Ok(true);
    }
    if let Some((_, became)) = others.iter().find(|(other, _)| *other == word) {
        return Err(format!("{word:?} {became}; choose {}", one_of(built)));
    }
    match nearest(word, built) {
        None => Ok(false),
        Some(near) => {
            let (built, value) = (one_of(built), describe(value));
            Err(format!("expected {built}, got {value}; did you mean {near:?}?"))
        }
    }
}

/// Returns whether the value is a text that reads as a `T`.
pub fn parsed<T: FromStr<Err = String>>(value: &Value) -> Result<bool, String> {
    Ok(value.as_str().map(str::parse::<T>).transpose()?.is_some())
}

/// Returns whether the value is a list that is not empty, and checks its members.
pub fn each(value: &Value, check: fn(&Value) -> Result<(), String>) -> Result<bool, String> {
    match value.as_array() {
        Some(list) if !list.is_empty() => list.iter().try_for_each(check).map(|()| true),
        _ => Ok(false),
    }
}

/// Returns whether the value is a table that is not empty, and checks its values.
pub fn each_entry(value: &Value, check: fn(&Value) -> Result<(), String>) -> Result<bool, String> {
    let checked =
        |(name, value): (&String, &Value)| check(value).map_err(|message| format!("`{name}`: {message}"));
    match value.as_table() {
        Some(table) if !table.is_empty() => table.iter().try_for_each(checked).map(|()| true),
        _ => Ok(false),
    }
}

fn size(value: &Value) -> Option<Result<u64, String>> {
    match value {
        Value::Integer(bytes) => u64::try_from(*bytes).ok().map(Ok),
        Value::String(text) => Some(match text.parse::<ByteSize>() {
            // TOML holds no larger integer.
            Ok(ByteSize(bytes)) if i64::try_from(bytes).is_ok() => Ok(bytes),
            Ok(_) => Err(format!("{text:?} is too large")),
            Err(error) => Err(error.to_string()),
        }),
        _ => None,
    }
}

/// Returns whether a text can be a glob or a path. Globs are matched later, against the parameters.
fn is_glob(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    !text.trim().is_empty() && !text.contains('\0')
}

/// Rejects numbers that are not finite: the manifest of a checkpoint cannot hold them.
fn finite(value: &Value) -> Result<(), String> {
    match value {
        Value::Float(number) if !number.is_finite() => {
            Err(format!("{number} cannot be saved with a run; use finite numbers"))
        }
        Value::Array(list) => list.iter().try_for_each(finite),
        Value::Table(table) => table.values().try_for_each(finite),
        _ => Ok(()),
    }
}

fn span(value: &Value, zero: bool) -> Result<bool, String> {
    let Some(text) = value.as_str() else { return Ok(false) };
    let unit = text.split_whitespace().nth(1).unwrap_or_default();
    if ["s", "min", "h", "minutes", "hours", "seconds"].contains(&unit) {
        return Err(format!("{text:?} is a time, which only checkpoint.every takes; give epochs or steps"));
    }
    match text.parse::<Span>() {
        Err(error) => Err(error.to_string()),
        Ok(span) if span.is_zero() && !zero => Err(format!("{text:?} is zero; give at least 1 step")),
        Ok(_) => Ok(true),
    }
}
