//! The flag that selects GPUs.

use clap::Args;
use dtrain_common::gpu::{GpuId, GpuIdError};
use std::fmt;
use std::str::FromStr;

#[derive(Debug, Default, Args)]
pub(crate) struct GpuArgs {
    /// GPUs, one worker each: `0,1`, UUIDs, or `none` (CPU).
    #[arg(long, value_name = "IDS", allow_negative_numbers = true)]
    pub(crate) gpu_ids: Option<GpuIds>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuIds {
    text: String,
    /// In the order of the workers; empty for the CPU.
    pub(crate) ids: Vec<GpuId>,
}

impl FromStr for GpuIds {
    type Err = GpuIdError;

    fn from_str(text: &str) -> Result<Self, GpuIdError> {
        let text = text.trim();
        let ids = match text {
            "" | "none" => Vec::new(),
            list => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        };
        Ok(Self { text: text.into(), ids })
    }
}

impl fmt::Display for GpuIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.ids.is_empty() { "none" } else { &self.text })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn lists_of_gpus() {
        let ids = |text: &str| text.parse::<GpuIds>().map(|ids| (ids.ids.len(), ids.to_string()));
        assert_eq!(ids("2"), Ok((1, "2".into())));
        assert_eq!(ids("0, GPU-8f ,MIG-1/2"), Ok((3, "0, GPU-8f ,MIG-1/2".into())));
        assert_eq!(ids(""), Ok((0, "none".into())));
        assert_eq!(ids(" none "), Ok((0, "none".into())));
        for (text, wrong) in [
            ("0,", ""),
            (",", ""),
            ("-1", "-1"),
            ("0,none", "none"),
            ("0 1", "0 1"),
            ("0;1", "0;1"),
            ("all", "all"),
        ] {
            assert_eq!(ids(text), Err(GpuIdError(wrong.into())), "{text:?}");
        }
    }
}
