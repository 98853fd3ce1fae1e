//! [`section!`](crate::section) makes a section's type, defaults, keys and part of the experiment from one table.

use std::collections::BTreeMap;
use std::fmt::Debug;

use serde::Serialize;
use toml::{Table, Value};

use super::kinds::Key;

/// The keys and the experiment's settings of a section.
pub trait Section {
    /// In the order in which messages list them.
    const KEYS: &'static [Key];

    fn settings(&self, _found: &mut Settings) {}
}

/// The settings of an experiment as (key, value as text).
#[derive(Default)]
pub struct Settings(pub Vec<(&'static str, String)>);

impl Settings {
    /// Adds a setting. `None`, which TOML does not have, becomes "not set".
    pub fn experiment(&mut self, key: &'static str, value: &(impl Serialize + Debug)) {
        let words = match Table::try_from(BTreeMap::from([(key, value)])) {
            Ok(table) => table.get(key).map_or_else(|| "not set".into(), Value::to_string),
            // TOML has no integer of 2^63 or more.
            Err(_) => format!("{value:?}"),
        };
        self.0.push((key, words));
    }
}

/// Returns the text of a doc comment; of another attribute an empty one.
#[macro_export]
macro_rules! doc {
    (doc = $text:literal) => {
        $text
    };
    ($($other:tt)+) => {
        ""
    };
}

/// Makes a section from lines `field as "key": type = default, kind;`, of which `as "key"` may be left out. A line without it ends
/// with `experiment` if another value makes another experiment. The crate needs serde.
#[macro_export]
macro_rules! section {
    ($(#[$meta:meta])* $name:ident $path:literal {
        $($(#[$($about:tt)+])* $field:ident $(as $key:literal)?: $type:ty = $default:expr, $kind:expr $(, $experiment:ident)?;)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$($about)+])* $(#[serde(rename = $key)])? pub $field: $type,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $crate::recipe::keys::Section for $name {
            const KEYS: &'static [$crate::recipe::kinds::Key] = &[
                $($crate::recipe::kinds::Key {
                    name: $crate::entry!(@key $field $($key)?),
                    kind: $kind,
                    about: concat!($($crate::doc!($($about)+)),*),
                },)+
            ];

            fn settings(&self, _found: &mut $crate::recipe::keys::Settings) {
                $($(_found.$experiment(concat!($path, ".", stringify!($field)), &self.$field);)?)+
            }
        }
    };
}

/// As [`section!`](crate::section), for settings without a default: a line is `field as "key": type, kind;`.
#[macro_export]
macro_rules! entry {
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
    ($(#[$meta:meta])* $name:ident {
        $($(#[$($about:tt)+])* $field:ident $(as $key:literal)?: $type:ty, $kind:expr;)+
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$($about)+])* $(#[serde(rename = $key)])? pub $field: $type,)+
        }

        impl $crate::recipe::keys::Section for $name {
            const KEYS: &'static [$crate::recipe::kinds::Key] = &[
                $($crate::recipe::kinds::Key {
                    name: $crate::entry!(@key $field $($key)?),
                    kind: $kind,
                    about: concat!($($crate::doc!($($about)+)),*),
                },)+
            ];
        }
    };
}
