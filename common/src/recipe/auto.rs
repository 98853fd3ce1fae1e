//! Recipe settings that are "auto" or a value.

use serde::{Deserialize, Serialize};

use crate::units::ByteSize;

/// Makes a module for each word, with which serde writes a unit variant as that word.
macro_rules! words {
    ($($name:ident)+) => {$(
        mod $name {
            use serde::{Deserialize, Deserializer, Serializer, de};

            pub(super) fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(stringify!($name))
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
                match String::deserialize(deserializer)?.as_str() {
                    stringify!($name) => Ok(()),
                    _ => Err(de::Error::custom(concat!("expected ", stringify!($name)))),
                }
            }
        }
    )+};
}

words! { auto off }

/// A setting that dtrain chooses unless the user states a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"auto\" or a value of the setting: a whole number, true or false, or a size such as \"14 GiB\""
)]
pub enum Auto<T> {
    /// `"auto"`: dtrain chooses.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// The value that the user states.
    Value(T),
}

impl<T> Auto<T> {
    /// Returns the value that the user states, if any.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Value(value) => Some(value),
        }
    }
}

/// Loader threads of each rank, at least 1.
pub type Workers = Auto<usize>;
/// The largest micro-batch, at least 1 sample.
pub type MicroBatch = Auto<usize>;
/// A setting that is on or off.
pub type Switch = Auto<bool>;
/// The most memory of a rank's tensors on its device; the default is the device's memory minus a margin.
pub type Budget = Auto<ByteSize>;

/// Memory for decoded images, for each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"auto\", \"off\" or a size such as \"4 GiB\"")]
pub enum Cache {
    /// `"auto"`: a share of the machine's free memory.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// `"off"`: every image is decoded again in every epoch.
    #[serde(with = "off")]
    Off,
    /// At most this many bytes.
    Size(ByteSize),
}
