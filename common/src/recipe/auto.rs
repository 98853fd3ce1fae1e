//! The settings of a recipe that are "auto" or a value of their own.

use serde::{Deserialize, Serialize};

use crate::units::ByteSize;

/// Modules by which a variant without a value is written as a word.
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

/// What dtrain chooses, unless the user has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"auto\" or a value of the setting: a whole number, true or false, or a size such as \"14 GiB\""
)]
pub enum Auto<T> {
    /// `"auto"`: chosen by dtrain.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// What the user says.
    Is(T),
}

impl<T> Auto<T> {
    /// What the user has decided, unless it is left to dtrain.
    pub fn stated(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Is(value) => Some(value),
        }
    }
}

/// Loader threads of each rank, at least 1.
pub type Workers = Auto<usize>;
/// The largest micro-batch, at least 1 sample.
pub type MicroBatch = Auto<usize>;
/// A setting that is on or off.
pub type Switch = Auto<bool>;
/// The most memory that a rank's tensors may take on its device; the device's less a margin.
pub type Budget = Auto<ByteSize>;

/// Memory for decoded images, for each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"auto\", \"off\" or a size such as \"4 GiB\"")]
pub enum Cache {
    /// `"auto"`: what dtrain thinks the machine can spare.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// `"off"`: every image is decoded again in every epoch.
    #[serde(with = "off")]
    Off,
    /// At most so many bytes.
    Size(ByteSize),
}
