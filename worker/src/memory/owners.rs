//! Memory figures, measured and by owner.

use dtrain_common::units::ByteSize;
use serde::{Deserialize, Serialize};
use tch::Device;

use crate::device::kind;

/// Memory in use on one device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct MemoryReport {
    /// Bytes that tensors use.
    pub(crate) allocated: u64,
    /// Bytes that the allocator holds, in use or not.
    pub(crate) reserved: u64,
    /// Highest `allocated` so far.
    pub(crate) peak: u64,
}

impl MemoryReport {
    /// Returns a line such as `GPU memory: 12.34 GiB allocated | 13.21 GiB reserved`.
    pub(crate) fn line(&self, device: Device) -> String {
        let (allocated, reserved) = (ByteSize(self.allocated), ByteSize(self.reserved));
        format!("{} memory: {allocated} allocated | {reserved} reserved", kind(device))
    }
}

/// Bytes by owner at the peak of a rank's memory, measured or predicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Owners {
    /// Weights, trainable and frozen.
    pub parameters: u64,
    /// Gradients of the trainable weights.
    pub gradients: u64,
    pub optimizer: u64,
    pub ema: u64,
    /// Running statistics, and the copy that restores them.
    pub buffers: u64,
    /// The micro-batch, and the tensors that forward keeps for backward.
    pub activations: u64,
    /// The rest: temporary memory of operations.
    pub workspace: u64,
}

impl Owners {
    /// Returns names and bytes in display order.
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

    /// Returns the bytes that also exist between steps.
    pub fn state(&self) -> u64 {
        self.rows()[..5].iter().map(|(_, bytes)| bytes).sum()
    }

    pub fn total(&self) -> u64 {
        self.rows().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// The peak of each phase of a step, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct PhasePeaks {
    pub(crate) forward: u64,
    /// Includes the reductions that start in backward.
    pub(crate) backward: u64,
    /// The rest of the reduction.
    pub(crate) reduce: u64,
    /// Clipping, optimizer, running statistics and moving average.
    pub(crate) update: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_as_documented() {
        let report = MemoryReport { allocated: 13_249_974_108, reserved: 14_184_129_495, peak: 0 };
        let line = "GPU memory: 12.34 GiB allocated | 13.21 GiB reserved";
        assert_eq!(report.line(Device::Cuda(0)), line);
    }
}
