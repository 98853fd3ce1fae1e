//! Lists of tables whose `name` decides their other keys, declared once.

/// Makes from entries `"clip" Clip { settings }` a section for each, the enum of all, the kind of the list's key, and a macro
/// that does the same with the settings of any entry: `each!(value, it => ...)`. The first token is `$`, for that macro.
macro_rules! named {
    ($d:tt $(#[$meta:meta])* $all:ident, $kind:ident, $each:ident, $path:literal:
        $($(#[$about:meta])* $name:literal $one:ident { $($settings:tt)+ })+
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "name")]
        pub enum $all {
            $($(#[$about])* #[serde(rename = $name)] $one($one),)+
        }

        impl $all {
            /// Returns the name of the entry.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$one(_) => $name,)+ }
            }
        }

        /// The entries, with their settings.
        pub(super) const $kind: dtrain_common::recipe::kinds::Kind = dtrain_common::recipe::kinds::Kind::Named(&[
            $(dtrain_common::recipe::kinds::Named {
                name: $name,
                keys: <$one as dtrain_common::recipe::keys::Section>::KEYS,
            },)+
        ]);

        $(dtrain_common::section! { $(#[$about])* $one $path { $($settings)+ } })+

        /// Does the same with the settings of any entry.
        #[macro_export]
        macro_rules! $each {
            ($d of:expr, $d it:ident => $d then:expr) => {
                match $d of { $($crate::$all::$one($d it) => $d then,)+ }
            };
        }
    };
}

pub(super) use named;
