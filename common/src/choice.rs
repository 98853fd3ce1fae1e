//! Types that are written as text: one of a few words, or a form of their type.

/// Makes an enum of each table of words: reads and writes a value as its word, and lists the words. The crate needs serde.
#[macro_export]
macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal: $says:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(#[doc = $says] #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All values as a recipe writes them.
            pub const NAMES: &'static [&'static str] = &[$($word),+];

            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the value as a recipe writes it.
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

/// Serialises types as the text of their `Display` and reads them with `FromStr`. The crate needs serde.
#[macro_export]
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
