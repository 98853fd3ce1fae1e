//! Types that are written as words: one of a few, or a text of their own.

/// Makes an enum of each table of words: reads and writes a value as its word, and lists the words.
macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal: $says:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(#[doc = $says] #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// Every value as a recipe spells it.
            pub const NAMES: &'static [&'static str] = &[$($word),+];

            /// The value as a recipe spells it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    )+};
}

/// Serialises types as the text that they show, which they read.
macro_rules! as_text {
    ($($name:ident),+) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <String as serde::Deserialize>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}

pub(crate) use {as_text, choices};
