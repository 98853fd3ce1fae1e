//! The flag that selects GPUs.

use clap::Args;
use dtrain_common::gpu::{GpuId, GpuIdError};
use std::fmt;
use std::str::FromStr;

#[derive(Debug, Default, Args)]
pub(crate) struct GpuArgs {
    /// The GPUs to use, one worker on each: numbers such as `2` or `0,1`, or UUIDs; `none` for the CPU.
    ///
    /// Numbers are those of nvidia-smi, or count the entries of CUDA_VISIBLE_DEVICES where it is set. A UUID is that of a GPU
    /// (`GPU-...`) or of a MIG instance (`MIG-...`), or as much of its beginning as no other has. Without this flag
    /// workers see what the launcher sees.
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
