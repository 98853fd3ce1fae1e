//! [`section!`] makes a section's type, defaults, keys and part of the experiment from one table.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Serialize;
use toml::{Table, Value};

use super::kinds::Key;

/// The keys and the experiment's settings of a section.
pub(super) trait Section {
    /// In the order in which messages list them.
    const KEYS: &'static [Key];

    fn settings(&self, _found: &mut Settings) {}
}

/// The settings of an experiment as (key, value as text).
#[derive(Default)]
pub(super) struct Settings(pub(super) Vec<(&'static str, String)>);

impl Settings {
    /// Adds a setting. `None`, which TOML does not have, becomes "not set".
    pub(super) fn experiment(&mut self, key: &'static str, value: &(impl Serialize + Debug)) {
        let words = match Table::try_from(BTreeMap::from([(key, value)])) {
            Ok(table) => table.get(key).map_or_else(|| "not set".into(), Value::to_string),
            // TOML has no integer of 2^63 or more.
            Err(_) => format!("{value:?}"),
        };
        self.0.push((key, words));
    }
}

/// Makes a section from lines `field: type = default, kind;`. A line ends with `experiment` if another value
/// makes another experiment.
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

/// As [`section!`], for settings without a default: a line is `field as "key": type, kind;`.
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
