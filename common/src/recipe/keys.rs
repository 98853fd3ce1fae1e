//! Keys of a recipe and the values they take; and [`section!`], by which a section's one table of settings is its type, its
//! defaults, its keys and its part of the experiment. What depends on several keys is in `validate`.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Serialize;
use toml::{Table, Value};

/// A key and the values it takes.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// A section with keys of its own.
    Section(&'static [Key]),
    /// A list of sections with these keys, of which the first so many are required.
    Sections(&'static [Key], usize),
    /// A section with any keys.
    Free,
    /// One of these words; the second list holds those that a later version will take.
    Choice(&'static [&'static str], &'static [&'static str]),
    /// A whole number in this range.
    Whole(i64, i64),
    /// "auto" or a whole number in this range.
    AutoOrWhole(i64, i64),
    /// A number of this range.
    Number(Range),
    /// So many numbers of this range, from the first count to the second.
    Numbers(usize, usize, Range),
    /// true or false.
    Flag,
    /// "auto", true or false.
    AutoOrFlag,
    /// A length of training; may it be zero?
    Span { zero: bool },
    /// A length of training or of time, not zero.
    Every,
    /// At least one length of training, none of them zero.
    Spans,
    /// A number of bytes, of at least so many.
    Size(u64),
    /// "auto", "off" or a number of bytes.
    Cache,
    /// "auto" or a number of bytes.
    Budget,
    /// Max or min and the name of a figure.
    Best,
    /// "local", "synced" or a group of samples.
    BatchNorm,
    /// A name: text that is not empty.
    Name,
    /// A path.
    Path,
    /// A folder below another.
    FolderName,
    /// A list of globs on the names of parameters, possibly empty.
    Globs,
    /// A list of pairs of a regular expression and a replacement, at least one.
    Renames,
    /// One glob or at least one in a list.
    GlobOrGlobs,
}

/// Larger batches and data sets than any; keeps products of them far from overflow.
pub(super) const MAX_COUNT: i64 = 1 << 40;
/// A number of samples, steps or epochs.
pub(super) const COUNT: Kind = Kind::Whole(1, MAX_COUNT);
/// A number of samples, or "auto".
pub(super) const AUTO_OR_COUNT: Kind = Kind::AutoOrWhole(1, MAX_COUNT);
/// A rate or a decay.
pub(super) const RATE: Kind = Kind::Number(Range::AtLeastZero);
/// A part of a whole, neither none nor all of it.
pub(super) const PART: Kind = Kind::Number(Range::Inside);

/// One of these words.
pub(super) const fn choice(words: &'static [&'static str]) -> Kind {
    Kind::Choice(words, &[])
}

/// A range of finite numbers.
#[derive(Clone, Copy)]
pub(super) enum Range {
    Any,
    AtLeastZero,
    AtLeastOne,
    AboveZero,
    /// 0 included, 1 not.
    BelowOne,
    /// Neither 0 nor 1.
    Inside,
}

impl Range {
    pub(super) fn contains(self, number: f64) -> bool {
        let inside = match self {
            Self::Any => true,
            Self::AtLeastZero => number >= 0.0,
            Self::AtLeastOne => number >= 1.0,
            Self::AboveZero => number > 0.0,
            Self::BelowOne => (0.0..1.0).contains(&number),
            Self::Inside => number > 0.0 && number < 1.0,
        };
        inside && number.is_finite()
    }

    pub(super) fn describe(self) -> &'static str {
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

/// What the table of a section says of its keys.
pub(super) trait Section {
    /// In the order in which messages list them.
    const KEYS: &'static [Key];

    /// Adds those of its settings that make the experiment.
    fn settings(&self, _found: &mut Settings) {}
}

/// The settings of an experiment as (key, value in words).
#[derive(Default)]
pub(super) struct Settings(pub(super) Vec<(&'static str, String)>);

impl Settings {
    /// Adds a setting. What is not set, and `None` of TOML, is said so.
    pub(super) fn experiment(&mut self, key: &'static str, value: &(impl Serialize + Debug)) {
        let words = match Table::try_from(BTreeMap::from([(key, value)])) {
            Ok(table) => table.get(key).map_or_else(|| "not set".into(), Value::to_string),
            // TOML has no number beyond 2^63.
            Err(_) => format!("{value:?}"),
        };
        self.0.push((key, words));
    }
}

/// Makes a section from its table: a line `field: type = default, kind;` for each setting, with `experiment` at the end where
/// it makes the experiment, so that a run cannot go on with another value.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident $path:literal {
        $($(#[$about:meta])* $field:ident: $type:ty = $default:expr, $kind:expr $(, $experiment:ident)?;)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$about])* pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $crate::recipe::keys::Section for $name {
            const KEYS: &'static [$crate::recipe::keys::Key] = &[
                $($crate::recipe::keys::Key { name: stringify!($field), kind: $kind },)+
            ];

            fn settings(&self, _found: &mut $crate::recipe::keys::Settings) {
                $($(_found.$experiment(concat!($path, ".", stringify!($field)), &self.$field);)?)+
            }
        }
    };
}

/// As [`section!`], of a section that has settings without a default: a line `field as "key": type, kind;` for each.
macro_rules! entry {
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
    ($(#[$meta:meta])* $name:ident {
        $($(#[$about:meta])* $field:ident $(as $key:literal)?: $type:ty, $kind:expr;)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$about])* $(#[serde(rename = $key)])? pub $field: $type,)+
        }

        impl $crate::recipe::keys::Section for $name {
            const KEYS: &'static [$crate::recipe::keys::Key] = &[
                $($crate::recipe::keys::Key { name: entry!(@key $field $($key)?), kind: $kind },)+
            ];
        }
    };
}

pub(super) use {entry, section};
