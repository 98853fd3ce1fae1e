//! [`section!`], by which one table is a section's type, defaults, keys and part of the experiment.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Serialize;
use toml::{Table, Value};

use super::kinds::Key;

/// What the table of a section says of its keys.
pub(super) trait Section {
    /// In the order in which messages list them.
    const KEYS: &'static [Key];

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

/// Makes a section of lines `field: type = default, kind;`, with `experiment` at the end where another value
/// is another experiment.
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
            const KEYS: &'static [$crate::recipe::kinds::Key] = &[
                $($crate::recipe::kinds::Key { name: stringify!($field), kind: $kind },)+
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
            const KEYS: &'static [$crate::recipe::kinds::Key] = &[
                $($crate::recipe::kinds::Key { name: entry!(@key $field $($key)?), kind: $kind },)+
            ];
        }
    };
}

pub(super) use {entry, section};
