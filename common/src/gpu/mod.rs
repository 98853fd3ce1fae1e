//! The GPUs of this machine, the GPUs that a program sees, and the GPUs that a user selects.
//!
//! `driver` asks NVIDIA's management library (NVML); everything else is arithmetic on its answer, the
//! [`Inventory`]. GPUs are counted in NVML's order: by PCI bus, as `nvidia-smi` does.

mod choice;
mod driver;
mod status;
mod visible;

use crate::units::ByteSize;

pub use choice::{ChoiceError, GpuId, GpuIdError};
pub use driver::{Nvidia, all_support_bf16, inventory};
pub use status::{Driver, GpuProcess, GpuStatus, Settings, Status, Versions, oldest_driver};
pub use visible::Visible;

pub use nvml_wrapper::error::NvmlError;

/// One GPU, or one MIG instance: a part of a GPU that programs use like a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// NVML's index, in the order of the PCI bus; of an instance: its index within its GPU.
    pub index: u32,
    /// Product name; of an instance with its profile, such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    pub name: String,
    /// `GPU-...` or `MIG-...`, the same across restarts; `None` if the driver reports none.
    pub uuid: Option<String>,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// The instances of a GPU in MIG mode, possibly empty. CUDA cannot use such a GPU as a whole.
    pub mig: Option<Vec<GpuInfo>>,
}

/// Every GPU of the machine in NVML's order, independent of CUDA_VISIBLE_DEVICES.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    pub gpus: Vec<GpuInfo>,
}

/// Index of a GPU or MIG instance within one inventory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceIndex {
    gpu: usize,
    instance: Option<usize>,
}

/// Error of listing the GPUs.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("no NVIDIA driver is loaded on this machine, so no GPU can be used")]
    NoDriver,
    #[error("the NVIDIA driver failed to {what}: {source}; check that `nvidia-smi` works")]
    Driver { what: String, source: NvmlError },
}

impl DeviceIndex {
    fn whole(gpu: usize) -> Self {
        Self { gpu, instance: None }
    }

    pub fn is_instance(self) -> bool {
        self.instance.is_some()
    }

    /// Returns the machine's number of the GPU, or of the GPU that holds the instance.
    pub fn gpu(self) -> usize {
        self.gpu
    }
}

impl Inventory {
    /// Returns whether CUDA, which puts the fastest GPU first, and NVML may order the GPUs differently.
    pub fn is_mixed(&self) -> bool {
        self.gpus.windows(2).any(|pair| pair[0].name != pair[1].name)
    }

    pub fn device(&self, index: DeviceIndex) -> &GpuInfo {
        let gpu = &self.gpus[index.gpu];
        index.instance.and_then(|instance| gpu.mig.as_deref()?.get(instance)).unwrap_or(gpu)
    }

    /// Returns the name for CUDA_VISIBLE_DEVICES; `None` if the driver reports no UUID.
    pub fn uuid(&self, index: DeviceIndex) -> Option<&str> {
        self.device(index).uuid.as_deref()
    }

    /// Returns the name on this machine: `GPU 6`, `MIG instance 1 of GPU 0`.
    pub fn title(&self, index: DeviceIndex) -> String {
        let gpu = self.gpus[index.gpu].index;
        match index.is_instance() {
            true => format!("MIG instance {} of GPU {gpu}", self.device(index).index),
            false => format!("GPU {gpu}"),
        }
    }

    fn details(&self, index: DeviceIndex) -> String {
        let device = self.device(index);
        let uuid = device.uuid.as_deref().unwrap_or("no UUID");
        format!("{}, {}, {uuid}", device.name, ByteSize(device.total_bytes))
    }

    fn whole_gpus(&self) -> impl Iterator<Item = DeviceIndex> {
        (0..self.gpus.len()).map(DeviceIndex::whole)
    }

    fn instances(&self, gpu: usize) -> impl Iterator<Item = DeviceIndex> {
        let count = self.gpus[gpu].mig.as_ref().map_or(0, Vec::len);
        (0..count).map(move |instance| DeviceIndex { gpu, instance: Some(instance) })
    }

    /// Returns the device with the UUID `beginning`, else all devices whose UUID begins with it.
    fn with_uuid_prefix(&self, beginning: &str) -> Vec<DeviceIndex> {
        let everything =
            self.whole_gpus().flat_map(|whole| std::iter::once(whole).chain(self.instances(whole.gpu)));
        let fitting: Vec<_> = everything
            .filter_map(|index| Some((index, self.uuid(index)?)))
            .filter(|(_, uuid)| uuid.starts_with(beginning))
            .collect();
        // Older drivers number instances at the end of the name, so one name can be a prefix of another.
        let exact = fitting.iter().find(|(_, uuid)| *uuid == beginning);
        match exact {
            Some((index, _)) => vec![*index],
            None => fitting.into_iter().map(|(index, _)| index).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
