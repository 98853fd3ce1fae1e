//! The text form of `model.batchnorm`.

use std::fmt;
use std::str::FromStr;

dtrain_common::as_text!(BatchNorm);

/// The samples that BatchNorm normalises together in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BatchNorm {
    /// The micro-batch of one rank.
    #[default]
    Local,
    /// The micro-batches of all ranks together.
    Synced,
    /// Groups of this many samples of the step, at least 1, for any partition; the last group may be smaller.
    Group(usize),
    /// None: training normalises by the running statistics, which stay.
    Frozen,
}

impl BatchNorm {
    /// The values that are one word.
    pub const NAMES: &'static [&'static str] = &["local", "synced", "frozen"];

    /// Returns the samples of a group, if there are groups.
    pub fn group(self) -> Option<usize> {
        match self {
            Self::Group(samples) => Some(samples),
            Self::Local | Self::Synced | Self::Frozen => None,
        }
    }
}

impl FromStr for BatchNorm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let group = || {
            let samples = text.strip_prefix("group:")?.parse().ok()?;
            (1..=1 << 40).contains(&samples).then_some(Self::Group(samples))
        };
        match text {
            "local" => Ok(Self::Local),
            "synced" => Ok(Self::Synced),
            "frozen" => Ok(Self::Frozen),
            _ => group().ok_or_else(|| {
                format!(
                    "expected one of \"local\", \"synced\", \"frozen\", or \"group:\" with the number of samples, such as \
                     \"group:16\", got {text:?}"
                )
            }),
        }
    }
}

impl fmt::Display for BatchNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Synced => f.write_str("synced"),
            Self::Frozen => f.write_str("frozen"),
            Self::Group(samples) => write!(f, "group:{samples}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn batchnorm_values_round_trip_and_errors_list_them() {
        for batchnorm in [
            BatchNorm::Local,
            BatchNorm::Synced,
            BatchNorm::Frozen,
            BatchNorm::Group(1),
            BatchNorm::Group(16),
        ] {
            assert_eq!(batchnorm.to_string().parse::<BatchNorm>().unwrap(), batchnorm);
        }
        for text in
            ["", "global", "group", "group:", "group:0", "group:-2", "group:2.5", "group: 4", "Group:4"]
        {
            let error = text.parse::<BatchNorm>().unwrap_err();
            assert!(error.contains("\"local\", \"synced\"") && error.contains("group:16"), "{error}");
        }
    }
}
