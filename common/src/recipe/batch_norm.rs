//! `model.batchnorm`: over what BatchNorm takes its statistics in training.

use std::fmt;
use std::str::FromStr;

use super::Recipe;
use crate::batch::{BatchError, Partition};

/// The samples that BatchNorm normalises together in training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BatchNorm {
    /// The micro-batch of one rank.
    #[default]
    Local,
    /// The micro-batches of all ranks together.
    Synced,
    /// Groups of so many samples of the step, at least 2, whatever the cut; the last group of a step may be smaller.
    Group(usize),
}

impl BatchNorm {
    /// The values that are one word.
    pub const NAMES: &'static [&'static str] = &["local", "synced"];

    /// Samples of a group, where there are groups.
    pub fn group(self) -> Option<usize> {
        match self {
            Self::Group(samples) => Some(samples),
            Self::Local | Self::Synced => None,
        }
    }
}

impl FromStr for BatchNorm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let group = || {
            let samples = text.strip_prefix("group:")?.parse().ok()?;
            (2..=1 << 40).contains(&samples).then_some(Self::Group(samples))
        };
        match text {
            "local" => Ok(Self::Local),
            "synced" => Ok(Self::Synced),
            _ => group().ok_or_else(|| {
                format!(
                    "expected one of \"local\", \"synced\", or \"group:\" with the number of samples, at least 2, such as \
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
            Self::Group(samples) => write!(f, "group:{samples}"),
        }
    }
}

crate::choice::as_text!(BatchNorm);

impl Recipe {
    /// How a step is cut among `ranks` into micro-batches of at most `micro_batch` samples (`None`: a rank's whole share), in the groups
    /// that BatchNorm normalises.
    pub fn partition(&self, ranks: usize, micro_batch: Option<usize>) -> Result<Partition, BatchError> {
        let group = self.model.batchnorm.group();
        Partition::in_groups(self.train.effective_batch, ranks, micro_batch, group)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_read_back_and_others_name_those_there_are() {
        for batchnorm in [BatchNorm::Local, BatchNorm::Synced, BatchNorm::Group(16)] {
            assert_eq!(batchnorm.to_string().parse::<BatchNorm>().unwrap(), batchnorm);
        }
        for text in [
            "",
            "global",
            "group",
            "group:",
            "group:1",
            "group:-2",
            "group:2.5",
            "group: 4",
            "Group:4",
        ] {
            let error = text.parse::<BatchNorm>().unwrap_err();
            assert!(
                error.contains("\"local\", \"synced\"") && error.contains("group:16"),
                "{error}"
            );
        }
    }
}
