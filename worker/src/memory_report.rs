//! Memory figures: what was measured, and what a model's parameters, gradients and optimizer need.

use std::io;

use serde::{Deserialize, Serialize};

use dtrain_common::units::ByteSize;

/// Memory in use on one device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct MemoryReport {
    /// In use by tensors; on a CPU the resident set of the process.
    pub allocated: u64,
    /// Held by the allocator, in use or not; on a CPU as `allocated`.
    pub reserved: u64,
    /// Highest `allocated` so far.
    pub peak: u64,
}

impl MemoryReport {
    /// `GPU memory: 12.34 GiB allocated | 13.21 GiB reserved`, with `device` as the first word.
    pub(crate) fn line(&self, device: &str) -> String {
        format!(
            "{device} memory: {} allocated | {} reserved",
            ByteSize(self.allocated),
            ByteSize(self.reserved)
        )
    }
}

/// The memory of this process as the kernel counts it: VmRSS as allocated and reserved, VmHWM as peak.
///
/// # Errors
/// When `/proc/self/status` cannot be read or lacks these lines, as outside Linux.
pub(crate) fn host_memory() -> io::Result<MemoryReport> {
    parse_status(&std::fs::read_to_string("/proc/self/status")?)
}

fn parse_status(status: &str) -> io::Result<MemoryReport> {
    let bytes = |field: &str| {
        status
            .lines()
            .find_map(|line| {
                line.strip_prefix(field)?
                    .strip_prefix(':')?
                    .trim()
                    .strip_suffix("kB")
            })
            .and_then(|kib| kib.trim().parse::<u64>().ok()?.checked_mul(1024))
            .ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("/proc/self/status has no readable {field}"),
                )
            })
    };
    let resident = bytes("VmRSS")?;
    Ok(MemoryReport {
        allocated: resident,
        reserved: resident,
        peak: bytes("VmHWM")?,
    })
}

/// Bytes by owner: where the memory of a rank was when it was highest, or is predicted to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Owners {
    /// Weights, trainable and frozen.
    pub parameters: u64,
    /// Gradients of the trainable weights.
    pub gradients: u64,
    /// The optimizer's moments.
    pub optimizer: u64,
    /// The moving average of the weights.
    pub ema: u64,
    /// Running statistics, and what is kept to put them back.
    pub buffers: u64,
    /// The micro-batch, and what the forward pass keeps for backward.
    pub activations: u64,
    /// What operations take for a moment: the rest.
    pub workspace: u64,
}

impl Owners {
    /// Names and bytes in the order in which they are shown.
    pub fn rows(&self) -> [(&'static str, u64); 7] {
        [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("ema", self.ema),
            ("buffers", self.buffers),
            ("activations", self.activations),
            ("workspace", self.workspace),
        ]
    }

    /// What is there whether or not a step is under way; saturates at `u64::MAX`.
    pub fn state(&self) -> u64 {
        self.rows()[..5]
            .iter()
            .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// All of it; saturates at `u64::MAX`.
    pub fn total(&self) -> u64 {
        self.rows()
            .iter()
            .fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// The highest memory of each phase of a step, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PhasePeaks {
    /// The forward passes.
    pub forward: u64,
    /// The backward passes, with the reductions that start in them.
    pub backward: u64,
    /// The rest of the reduction.
    pub reduce: u64,
    /// Clipping, optimizer, running statistics and moving average.
    pub update: u64,
}

/// The bytes of a model's persistent state, without activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StateBytes {
    /// Weights, trainable and frozen.
    pub parameters: u64,
    /// Gradients of the trainable weights.
    pub gradients: u64,
    /// The optimizer's moments of the trainable weights.
    pub optimizer: u64,
}

impl StateBytes {
    /// All of it; saturates at `u64::MAX`.
    pub fn total(&self) -> u64 {
        self.parameters
            .saturating_add(self.gradients)
            .saturating_add(self.optimizer)
    }
}

/// The state of a model with `trainable` and `frozen` parameters of `bytes_per_element` bytes (4 for float32) and an
/// optimizer that keeps `moments` values of the same size for each trainable one (2 for AdamW, 1 for SGD with
/// momentum, 0 for plain SGD). Saturates at `u64::MAX`.
pub(crate) fn state_bytes(trainable: u64, frozen: u64, bytes_per_element: u64, moments: u64) -> StateBytes {
    let trained = trainable.saturating_mul(bytes_per_element);
    StateBytes {
        parameters: trainable.saturating_add(frozen).saturating_mul(bytes_per_element),
        gradients: trained,
        optimizer: trained.saturating_mul(moments),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_guides_figures() {
        // 30,954,585 parameters: 118 MiB of weights in float32, 472 MiB with gradients and two moments.
        let state = state_bytes(30_954_585, 0, 4, 2);
        assert_eq!(state.parameters / MIB, 118);
        assert_eq!(state.total() / MIB, 472);
        assert_eq!(state.total(), 4 * state.parameters);
    }

    #[test]
    fn frozen_parameters_cost_their_weights_alone() {
        let state = state_bytes(10, 90, 4, 2);
        assert_eq!(
            state,
            StateBytes {
                parameters: 400,
                gradients: 40,
                optimizer: 80
            }
        );
        assert_eq!(state.total(), 520);
        assert_eq!(state_bytes(u64::MAX, 1, 4, 2).total(), u64::MAX);
    }

    #[test]
    fn the_line_reads_as_documented() {
        let report = MemoryReport {
            allocated: 13_249_974_108,
            reserved: 14_184_129_495,
            peak: 0,
        };
        assert_eq!(
            report.line("GPU"),
            "GPU memory: 12.34 GiB allocated | 13.21 GiB reserved"
        );
        assert!(report.line("CPU").starts_with("CPU memory: "));
    }

    #[test]
    fn status_is_read_in_kib() {
        let report = parse_status("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n").unwrap();
        assert_eq!(
            report,
            MemoryReport {
                allocated: MIB,
                reserved: MIB,
                peak: 2 * MIB
            }
        );
        for status in [
            "",
            "VmRSS:\t1024 kB\n",
            "VmRSS:\tx kB\nVmHWM:\t1 kB\n",
            "VmRSS: 18446744073709551615 kB",
        ] {
            assert_eq!(
                parse_status(status).unwrap_err().kind(),
                io::ErrorKind::InvalidData,
                "{status:?}"
            );
        }
    }

    #[test]
    fn this_process_uses_memory_and_its_peak_follows() {
        let before = host_memory().unwrap();
        assert!(before.allocated > 0 && before.peak >= before.allocated);
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = host_memory().unwrap();
        assert!(after.peak >= block.len() as u64, "{after:?}");
    }
}
