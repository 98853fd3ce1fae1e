//! The settings of a recipe that are "auto" or a value of their own.

use serde::{Deserialize, Serialize, Serializer};

use crate::units::ByteSize;

/// Modules by which a variant without a value is written as a constant.
macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)+) => {$(
        mod $name {
            use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

            pub(super) fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
                $value.serialize(serializer)
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
                match <$type>::deserialize(deserializer)? == $value {
                    true => Ok(()),
                    false => Err(de::Error::custom(concat!("expected ", stringify!($value)))),
                }
            }
        }
    )+};
}

constants! {
    auto: String = "auto";
    off: String = "off";
    yes: bool = true;
    no: bool = false;
}

/// Loader threads of each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"auto\" or a whole number")]
pub enum Workers {
    /// `"auto"`: chosen by dtrain.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// This many, at least 1.
    Count(usize),
}

impl Workers {
    /// The number, unless it is chosen by dtrain.
    pub fn count(self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Count(number) => Some(number),
        }
    }
}

/// The largest micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"auto\" or a whole number")]
pub enum MicroBatch {
    /// `"auto"`: chosen by dtrain.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// This many samples, at least 1.
    Size(usize),
}

impl MicroBatch {
    /// The limit, unless it is chosen by dtrain; as `Partition::new` takes it.
    pub fn limit(self) -> Option<usize> {
        match self {
            Self::Auto => None,
            Self::Size(number) => Some(number),
        }
    }
}

/// A setting that is on or off, or left to dtrain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"auto\", true or false")]
pub enum Switch {
    /// `"auto"`: chosen by dtrain.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// `true`
    #[serde(with = "yes")]
    On,
    /// `false`
    #[serde(with = "no")]
    Off,
}

impl Switch {
    /// What the user has decided, unless it is left to dtrain.
    pub fn stated(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::On => Some(true),
            Self::Off => Some(false),
        }
    }
}

/// Memory for decoded images, for each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"auto\", \"off\" or a size such as \"4 GiB\""
)]
pub enum Cache {
    /// `"auto"`: what dtrain thinks the machine can spare.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// `"off"`: every image is decoded again in every epoch.
    #[serde(with = "off")]
    Off,
    /// At most so many bytes.
    #[serde(serialize_with = "exact_size")]
    Size(ByteSize),
}

/// The most memory that a rank's tensors may take on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected \"auto\" or a size such as \"14 GiB\"")]
pub enum Budget {
    /// `"auto"`: the device's memory less a margin.
    #[default]
    #[serde(with = "auto")]
    Auto,
    /// So many bytes.
    #[serde(serialize_with = "exact_size")]
    Size(ByteSize),
}

impl Budget {
    /// The bytes, where they are stated.
    pub fn size(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Size(size) => Some(size.0),
        }
    }
}

/// Writes a size as text that says it exactly, as a person would: `25 MiB`.
pub(super) fn exact_size<S: Serializer>(size: &ByteSize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&size.exact())
}
