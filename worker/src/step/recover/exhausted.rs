//! The error of a run that has no memory for a step.

use std::error::Error;
use std::fmt;

use dtrain_common::units::ByteSize;

use crate::memory::OtherUsage;
use crate::memory_report::Owners;

/// Out of memory with the model's smallest micro-batch, and no way left to save memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exhausted {
    /// Rank, phase, step and bytes in use.
    pub location: String,
    /// The smallest micro-batch, which was too large.
    pub batch: usize,
    /// Bytes of the failed allocation, if known.
    pub requested_bytes: Option<u64>,
    /// Bytes of this rank by owner.
    pub owners: Owners,
    /// Whether the failure was predicted; otherwise measured.
    pub predicted: bool,
    /// On a GPU: the memory that others use.
    pub other_usage: Option<OtherUsage>,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "out of memory {}, with batches of {}, and no smaller ones are left. Give each rank more memory, share the optimizer's \
             state among more ranks (memory.shard_optimizer), or make the model or its input smaller. The memory of this rank{}:",
            self.location,
            self.batch,
            if self.predicted { ", predicted" } else { "" }
        )?;
        let row = |f: &mut fmt::Formatter<'_>, name: &str, bytes: u64| {
            write!(f, "  {name:<12}{:>12}", ByteSize(bytes).to_string())
        };
        for (name, bytes) in self.owners.rows() {
            if bytes > 0 {
                row(f, name, bytes)?;
                writeln!(f)?;
            }
        }
        row(f, "all", self.owners.total())?;
        if let Some(bytes) = self.requested_bytes {
            writeln!(f)?;
            row(f, "refused", bytes)?;
        }
        match self.other_usage {
            Some(OtherUsage { bytes, total }) => write!(
                f,
                "\nOf the GPU's {} the CUDA context, libraries and other processes have {}; `dtrain gpu info` names the processes",
                ByteSize(total),
                ByteSize(bytes)
            ),
            None => Ok(()),
        }
    }
}

impl Error for Exhausted {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_what_there_is() {
        let exhausted = Exhausted {
            location: "on rank 1 in forward at step 3: 2.00 MiB of 2.50 MiB allocated".to_owned(),
            batch: 1,
            requested_bytes: Some(3 << 19),
            owners: Owners { parameters: 1 << 20, activations: 1 << 19, ..Owners::default() },
            predicted: false,
            other_usage: None,
        };
        let text = exhausted.to_string();
        assert!(text.starts_with("out of memory on rank 1 in forward at step 3: 2.00 MiB"), "{text}");
        let table: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            table,
            [
                "  parameters      1.00 MiB",
                "  activations   512.00 KiB",
                "  all             1.50 MiB",
                "  refused         1.50 MiB"
            ]
        );
        let on_gpu =
            Exhausted { other_usage: Some(OtherUsage { bytes: 3 << 30, total: 8 << 30 }), ..exhausted };
        let text = on_gpu.to_string();
        assert!(
            text.ends_with(
                "Of the GPU's 8.00 GiB the CUDA context, libraries and other processes have 3.00 GiB; `dtrain gpu info` names the \
                 processes"
            ),
            "{text}"
        );
    }
}
