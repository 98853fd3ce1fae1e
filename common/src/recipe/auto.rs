//! The settings of a recipe that are "auto" or a number, true or false, and the cache, which is "auto", "off" or a size.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::units::ByteSize;

/// The word `"auto"`.
#[derive(Deserialize)]
enum Auto {
    #[serde(rename = "auto")]
    Auto,
}

macro_rules! auto_or_number {
    ($(#[$doc:meta])* $name:ident, $(#[$number_doc:meta])* $number:ident, $(#[$get_doc:meta])* $get:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name {
            /// `"auto"`: chosen by dtrain.
            #[default]
            Auto,
            $(#[$number_doc])*
            $number(usize),
        }

        impl $name {
            $(#[$get_doc])*
            pub fn $get(self) -> Option<usize> {
                match self {
                    Self::Auto => None,
                    Self::$number(number) => Some(number),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    Self::Auto => f.write_str("auto"),
                    Self::$number(number) => number.fmt(f),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    Self::Auto => serializer.serialize_str("auto"),
                    Self::$number(number) => number.serialize(serializer),
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                #[serde(untagged, expecting = "expected \"auto\" or a whole number")]
                enum Form {
                    Number(usize),
                    Word(Auto),
                }
                Ok(match Form::deserialize(deserializer)? {
                    Form::Number(number) => Self::$number(number),
                    Form::Word(Auto::Auto) => Self::Auto,
                })
            }
        }
    };
}

auto_or_number! {
    /// Loader threads of each rank.
    Workers,
    /// This many, at least 1.
    Count,
    /// The number, unless it is chosen by dtrain.
    count
}

auto_or_number! {
    /// The largest micro-batch.
    MicroBatch,
    /// This many samples, at least 1.
    Size,
    /// The limit, unless it is chosen by dtrain; as `Partition::new` takes it.
    limit
}

/// A setting that is on or off, or left to dtrain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Switch {
    /// `"auto"`: chosen by dtrain.
    #[default]
    Auto,
    /// `true`
    On,
    /// `false`
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

impl Serialize for Switch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.stated() {
            None => serializer.serialize_str("auto"),
            Some(on) => serializer.serialize_bool(on),
        }
    }
}

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected \"auto\", true or false")]
        enum Form {
            Flag(bool),
            Word(Auto),
        }
        Ok(match Form::deserialize(deserializer)? {
            Form::Flag(true) => Self::On,
            Form::Flag(false) => Self::Off,
            Form::Word(Auto::Auto) => Self::Auto,
        })
    }
}

/// Memory for decoded images, for each rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Cache {
    /// `"auto"`: what dtrain thinks the machine can spare.
    #[default]
    Auto,
    /// `"off"`: every image is decoded again in every epoch.
    Off,
    /// At most so many bytes.
    Size(ByteSize),
}

impl std::fmt::Display for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Size(size) => f.write_str(&size.exact()),
        }
    }
}

impl Serialize for Cache {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cache {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected \"auto\", \"off\" or a size such as \"4 GiB\""
        )]
        enum Form {
            Bytes(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Bytes(bytes) => Ok(Self::Size(ByteSize(bytes))),
            Form::Text(text) => match text.as_str() {
                "auto" => Ok(Self::Auto),
                "off" => Ok(Self::Off),
                size => size.parse().map(Self::Size).map_err(de::Error::custom),
            },
        }
    }
}

/// The most memory that a rank's tensors may take on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Budget {
    /// `"auto"`: the device's memory less a margin.
    #[default]
    Auto,
    /// So many bytes.
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

impl std::fmt::Display for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Size(size) => f.write_str(&size.exact()),
        }
    }
}

impl Serialize for Budget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Budget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Cache::deserialize(deserializer)? {
            Cache::Auto => Ok(Self::Auto),
            Cache::Size(size) => Ok(Self::Size(size)),
            Cache::Off => Err(de::Error::custom(
                "expected \"auto\" or a size such as \"14 GiB\"",
            )),
        }
    }
}

/// Writes a size as text that says it exactly, as a person would: `25 MiB`.
pub(super) fn exact_size<S: Serializer>(size: &ByteSize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&size.exact())
}
