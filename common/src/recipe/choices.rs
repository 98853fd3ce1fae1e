//! The settings of a recipe that are one of a few words, or "auto" or a number. Each list of words is the single
//! source for reading, writing and error messages.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// Every value as a recipe spells it.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The value as a recipe spells it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

choice! {
    /// What the model learns to do.
    Task {
        /// One class for each image.
        Classify = "classify",
    }
}

choice! {
    /// Where the images come from.
    DataKind {
        /// A folder with a folder of images for each class.
        Folder = "folder",
        /// Images drawn by dtrain itself, for trying things out; nothing to download.
        Generated = "generated",
    }
}

choice! {
    /// Random changes to training images.
    Augment {
        /// None.
        None = "none",
        /// Half of the images are mirrored left to right.
        Flip = "flip",
    }
}

choice! {
    /// The network, with torchvision's parameter names and layout.
    ModelName {
        /// ResNet-18.
        Resnet18 = "resnet18",
        /// ResNet-34.
        Resnet34 = "resnet34",
    }
}

choice! {
    /// What happens to the samples that do not fill the last step of an epoch.
    LastBatch {
        /// They make a shorter step.
        Keep = "keep",
        /// They are left out of this epoch.
        Drop = "drop",
    }
}

choice! {
    /// The optimizer.
    OptimName {
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// Stochastic gradient descent.
        Sgd = "sgd",
    }
}

choice! {
    /// The course of the learning rate after the warm-up.
    ScheduleName {
        /// Stays.
        Constant = "constant",
        /// Falls along half a cosine to `min_lr` at the end of the run.
        Cosine = "cosine",
    }
}

choice! {
    /// Automatic mixed precision.
    Amp {
        /// Where the device is faster with it; never on a CPU.
        Auto = "auto",
        /// Everything in float32.
        Off = "off",
    }
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
                #[derive(Deserialize)]
                enum Auto {
                    #[serde(rename = "auto")]
                    Auto,
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
