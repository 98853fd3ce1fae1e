//! What the GPUs are doing at the moment.

use serde::{Deserialize, Serialize};

use super::GpuError;

/// What tells of the GPUs of a machine: the driver, or for tests one that is made up.
pub trait Driver {
    /// The state of every GPU at this moment.
    fn status(&mut self) -> Result<Status, GpuError>;
}

/// A machine's driver and GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Status {
    /// The driver's version.
    pub driver: String,
    /// The newest CUDA that it supports.
    pub cuda: Option<String>,
    /// Every GPU in the order of `nvidia-smi`.
    pub gpus: Vec<GpuStatus>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// Its number, as `nvidia-smi` counts.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// `GPU-...`; none where the driver gives none.
    pub uuid: Option<String>,
    /// Memory of the device in bytes.
    pub total_bytes: u64,
    /// Memory nobody uses, in bytes.
    pub free_bytes: u64,
    /// The part of the last second in which something was computed; none where the driver does not tell.
    pub busy_percent: Option<u32>,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Milliwatts.
    pub power_mw: Option<u32>,
    /// Who uses it.
    pub processes: Vec<GpuProcess>,
}

/// A process that uses a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// As the driver counts: in a container, that of the host.
    pub pid: u32,
    /// Its memory on this GPU in bytes; none where the driver does not tell.
    pub used_bytes: Option<u64>,
}

impl GpuStatus {
    /// Memory in use, by anybody, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes)
    }
}
