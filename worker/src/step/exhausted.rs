//! The error of a run that has no memory for a step.

use std::error::Error;
use std::fmt;

use dtrain_common::units::ByteSize;

use crate::memory::{OtherUsage, Owners};

/// Out of memory with the model's smallest micro-batch, and no way left to save memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exhausted {
    /// Rank, phase, step and bytes in use.
    pub location: String,
    /// The smallest micro-batch, which was too large.
    pub batch: usize,
    /// The reason for this smallest micro-batch, such as buffers that cannot be joined; None for one sample.
    pub reason: Option<String>,
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
            "out of memory {}, with micro-batches of {}, the smallest possible{}; give each rank more memory, shard the optimizer's state \
             over more ranks (memory.shard_optimizer), or use a smaller model or input. Memory of this rank{}:",
            self.location,
            self.batch,
            self.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default(),
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
            row(f, "requested", bytes)?;
        }
        match self.other_usage {
            Some(OtherUsage { bytes, total }) => write!(
                f,
                "\nThe CUDA context, libraries and other processes use {} of the GPU's {}; `dtrain gpu info` lists the processes",
                ByteSize(bytes),
                ByteSize(total)
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
    fn the_memory_table_lists_nonzero_owners() {
        let exhausted = Exhausted {
            location: "on rank 1 in forward at step 3: 2.00 MiB of 2.50 MiB allocated".to_owned(),
            batch: 1,
            reason: None,
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
                "  requested       1.50 MiB"
            ]
        );
        let reason = Some("training writes `queue`".to_owned());
        let text = Exhausted { reason, ..exhausted.clone() }.to_string();
        assert!(text.contains("the smallest possible (training writes `queue`); give"), "{text}");
        let on_gpu =
            Exhausted { other_usage: Some(OtherUsage { bytes: 3 << 30, total: 8 << 30 }), ..exhausted };
        let text = on_gpu.to_string();
        assert!(
            text.ends_with(
                "The CUDA context, libraries and other processes use 3.00 GiB of the GPU's 8.00 GiB; `dtrain gpu info` lists the \
                 processes"
            ),
            "{text}"
        );
    }
}
