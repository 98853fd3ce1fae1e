//! The GPUs of this machine, which of them a program sees, and which of them a user has chosen.
//!
//! `driver` asks NVIDIA's management library (NVML); everything else is arithmetic on its answer, the [`Inventory`].
//! GPUs are counted in NVML's order, that of the PCI bus, which is also the order of `nvidia-smi`.

mod choice;
mod driver;
#[cfg(test)]
mod fixtures;
mod status;
mod versions;
mod visible;

use serde::{Deserialize, Serialize};

use crate::units::ByteSize;

pub use choice::{ChoiceError, GpuId, GpuIdError};
pub use driver::{Nvidia, all_compute_in_bf16, inventory};
pub use status::{Driver, GpuProcess, GpuStatus, Status};
pub use versions::{Versions, oldest_driver};
pub use visible::Visible;

pub use nvml_wrapper::error::NvmlError;

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// NVML's index, which orders GPUs by PCI bus.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// `GPU-...`, the same across restarts; none where the driver gives none.
    pub uuid: Option<String>,
    /// Memory of the device in bytes.
    pub total_bytes: u64,
    /// Memory nobody uses at the moment, in bytes.
    pub free_bytes: u64,
    /// The instances into which it is divided, where it is in MIG mode. CUDA cannot use it as a whole then, also where
    /// there is no instance.
    pub mig: Option<Vec<MigInfo>>,
}

/// One MIG instance: a part of a GPU that programs use as if it were a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInfo {
    /// NVML's index among the instances of its GPU.
    pub index: u32,
    /// Product name and profile, such as `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    pub name: String,
    /// `MIG-...`.
    pub uuid: String,
    /// Memory of the instance in bytes.
    pub total_bytes: u64,
    /// Memory nobody uses at the moment, in bytes.
    pub free_bytes: u64,
}

/// Every GPU of the machine in NVML's order, whatever CUDA_VISIBLE_DEVICES says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// The GPUs; each lies at the position of its index.
    pub gpus: Vec<GpuInfo>,
}

/// A GPU or a MIG instance of the inventory that it was found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    gpu: usize,
    instance: Option<usize>,
}

/// Why the GPUs could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no NVIDIA driver; the machine trains on its CPU.
    #[error("no NVIDIA driver is loaded on this machine, so no GPU can be used")]
    NoDriver,
    /// The driver is there and does not answer as it should.
    #[error("the NVIDIA driver failed to {what}: {source}; check that `nvidia-smi` works")]
    Driver {
        /// What was asked of it.
        what: String,
        /// Its answer.
        source: NvmlError,
    },
}

impl Place {
    fn whole(gpu: usize) -> Self {
        Self { gpu, instance: None }
    }

    /// Whether it is a part of a GPU.
    pub fn is_instance(self) -> bool {
        self.instance.is_some()
    }

    /// The machine's number of the GPU that it is, or is a part of.
    pub fn gpu(self) -> usize {
        self.gpu
    }
}

impl Inventory {
    /// Whether CUDA and NVML may count the GPUs differently: CUDA puts the fastest first, unless it is told otherwise,
    /// which only shows among GPUs of several kinds.
    pub fn is_mixed(&self) -> bool {
        self.gpus.windows(2).any(|pair| pair[0].name != pair[1].name)
    }

    /// Whether any GPU is in MIG mode.
    pub fn has_mig(&self) -> bool {
        self.gpus.iter().any(|gpu| gpu.mig.is_some())
    }

    /// Product name.
    pub fn name(&self, place: Place) -> &str {
        match self.instance(place) {
            Some(instance) => &instance.name,
            None => &self.gpus[place.gpu].name,
        }
    }

    /// All its memory in bytes.
    pub fn total_bytes(&self, place: Place) -> u64 {
        self.instance(place)
            .map_or(self.gpus[place.gpu].total_bytes, |instance| instance.total_bytes)
    }

    /// The memory that nobody uses at the moment, in bytes.
    pub fn free_bytes(&self, place: Place) -> u64 {
        self.instance(place)
            .map_or(self.gpus[place.gpu].free_bytes, |instance| instance.free_bytes)
    }

    /// What CUDA_VISIBLE_DEVICES calls it; none where the driver gives no UUID.
    pub fn uuid(&self, place: Place) -> Option<&str> {
        match self.instance(place) {
            Some(instance) => Some(&instance.uuid),
            None => self.gpus[place.gpu].uuid.as_deref(),
        }
    }

    /// What it is on this machine: `GPU 6`, `MIG instance 1 of GPU 0`.
    pub fn title(&self, place: Place) -> String {
        let gpu = self.gpus[place.gpu].index;
        match self.instance(place) {
            Some(instance) => format!("MIG instance {} of GPU {gpu}", instance.index),
            None => format!("GPU {gpu}"),
        }
    }

    /// Name, memory and UUID.
    fn details(&self, place: Place) -> String {
        let (name, bytes) = (self.name(place), self.total_bytes(place));
        let uuid = self.uuid(place).unwrap_or("no UUID");
        format!("{name}, {}, {uuid}", ByteSize(bytes))
    }

    fn instance(&self, place: Place) -> Option<&MigInfo> {
        self.gpus[place.gpu].mig.as_deref()?.get(place.instance?)
    }

    /// The GPU of this number, as a whole.
    fn at(&self, index: u64) -> Option<Place> {
        let gpu = usize::try_from(index).ok()?;
        (gpu < self.gpus.len()).then(|| Place::whole(gpu))
    }

    fn wholes(&self) -> impl Iterator<Item = Place> {
        (0..self.gpus.len()).map(Place::whole)
    }

    /// The MIG instances of a GPU, in their order.
    fn instances(&self, gpu: usize) -> impl Iterator<Item = Place> {
        let count = self.gpus[gpu].mig.as_ref().map_or(0, Vec::len);
        (0..count).map(move |instance| Place {
            gpu,
            instance: Some(instance),
        })
    }

    /// Everything whose UUID is `beginning`, or else begins with it.
    fn named(&self, beginning: &str) -> Vec<Place> {
        let everything = self
            .wholes()
            .flat_map(|whole| std::iter::once(whole).chain(self.instances(whole.gpu)));
        let fitting: Vec<_> = everything
            .filter_map(|place| Some((place, self.uuid(place)?)))
            .filter(|(_, uuid)| uuid.starts_with(beginning))
            .collect();
        // Older drivers name instances by numbers at the end, so that one name can be the beginning of another.
        let exact = fitting.iter().find(|(_, uuid)| *uuid == beginning);
        match exact {
            Some((place, _)) => vec![*place],
            None => fitting.into_iter().map(|(place, _)| place).collect(),
        }
    }
}
