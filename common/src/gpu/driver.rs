//! NVIDIA's management library (NVML), loaded at run time; without a driver: [`GpuError::NoDriver`].

use std::ffi::OsStr;

use nvml_wrapper::enum_wrappers::device::{ComputeMode, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

use super::{Driver, GpuError, GpuInfo, GpuProcess, GpuStatus, Inventory, Settings, Status, Versions};

/// The driver of this machine, kept open between calls.
#[derive(Debug)]
pub struct Nvidia(Nvml);

impl Nvidia {
    /// Loads the library by the name that every driver has; only development packages have the bare `.so`.
    pub fn open() -> Result<Self, GpuError> {
        let named = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init();
        named.or_else(|_| Nvml::init()).map(Self).map_err(|source| match source {
            NvmlError::LibloadingError(_) | NvmlError::DriverNotLoaded | NvmlError::LibraryNotFound => {
                GpuError::NoDriver
            }
            source => failed("start")(source),
        })
    }

    /// Returns every GPU of the machine.
    pub fn inventory(&self) -> Result<Inventory, GpuError> {
        Ok(Inventory {
            gpus: (0..count(&self.0)?).map(|index| gpu(&self.0, index)).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the settings of every GPU. An unreported setting is `None`.
    pub fn settings(&self) -> Result<Vec<Settings>, GpuError> {
        let read = |index| {
            let device = self.0.device_by_index(index).map_err(failed(format!("open GPU {index}")))?;
            let capability = device.cuda_compute_capability().ok().map(|it| (it.major, it.minor));
            let cores = device.num_cores().ok();
            Ok(Settings {
                capability,
                multiprocessors: capability.zip(cores).map(|(it, cores)| cores / cores_of_multiprocessor(it)),
                is_persistent: device.is_in_persistent_mode().ok(),
                is_prohibited: device.compute_mode().ok().map(|mode| mode == ComputeMode::Prohibited),
            })
        };
        (0..count(&self.0)?).map(read).collect()
    }

    /// Returns the versions of the driver and of its CUDA.
    pub fn versions(&self) -> Result<Versions, GpuError> {
        let driver = self.0.sys_driver_version().map_err(failed("report its version"))?;
        let cuda = self.0.sys_cuda_driver_version().ok().map(|version| {
            let (major, minor) = (cuda_driver_version_major(version), cuda_driver_version_minor(version));
            format!("{major}.{minor}")
        });
        Ok(Versions { driver, cuda })
    }
}

impl Driver for Nvidia {
    fn status(&mut self) -> Result<Status, GpuError> {
        let Versions { driver, cuda } = self.versions()?;
        let gpus = (0..count(&self.0)?).map(|index| status(&self.0, index));
        Ok(Status { driver, cuda, gpus: gpus.collect::<Result<_, _>>()? })
    }
}

/// Reads the status of a GPU. Unreported values, such as a virtual machine's temperature, are `None`.
fn status(nvml: &Nvml, index: u32) -> Result<GpuStatus, GpuError> {
    let info = gpu(nvml, index)?;
    let device = nvml.device_by_index(index).map_err(failed(format!("open GPU {index}")))?;
    let compute = device.running_compute_processes().unwrap_or_default();
    let graphics = device.running_graphics_processes().unwrap_or_default();
    let mut processes: Vec<GpuProcess> = Vec::new();
    for ProcessInfo { pid, used_gpu_memory, .. } in compute.into_iter().chain(graphics) {
        let used_bytes = match used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        // A process that computes and draws is in both lists.
        if !processes.iter().any(|known| known.pid == pid) {
            processes.push(GpuProcess { pid, used_bytes });
        }
    }
    Ok(GpuStatus {
        index,
        name: info.name,
        uuid: info.uuid,
        total_bytes: info.total_bytes,
        free_bytes: info.free_bytes,
        busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok(),
        power_mw: device.power_usage().ok(),
        processes,
    })
}

/// Returns the float32 cores of each multiprocessor, from the table of arithmetic in the CUDA C++ programming guide.
fn cores_of_multiprocessor(capability: (i32, i32)) -> u32 {
    if matches!(capability, (7, _) | (8, 0)) { 64 } else { 128 }
}

/// Returns whether every GPU is known to support bfloat16 (compute capability 8.0, Ampere).
pub fn all_support_bf16() -> bool {
    let capable = |nvml: &Nvml| -> Result<bool, NvmlError> {
        let mut devices = (0..nvml.device_count()?).map(|index| nvml.device_by_index(index));
        devices.try_fold(true, |all, device| Ok(all && device?.cuda_compute_capability()?.major >= 8))
    };
    Nvidia::open().is_ok_and(|driver| capable(&driver.0).unwrap_or(false))
}

/// Asks the driver for every GPU of the machine. Without a driver the error is [`GpuError::NoDriver`].
pub fn inventory() -> Result<Inventory, GpuError> {
    Nvidia::open()?.inventory()
}

fn count(nvml: &Nvml) -> Result<u32, GpuError> {
    nvml.device_count().map_err(failed("count the GPUs"))
}

fn gpu(nvml: &Nvml, index: u32) -> Result<GpuInfo, GpuError> {
    let title = format!("GPU {index}");
    let device = nvml.device_by_index(index).map_err(failed(format!("open {title}")))?;
    info(&device, index, &title, true, instances(&device, &title)?)
}

fn info(
    device: &Device<'_>,
    index: u32,
    title: &str,
    is_whole: bool,
    mig: Option<Vec<GpuInfo>>,
) -> Result<GpuInfo, GpuError> {
    let of = |what: &str| failed(format!("{what} {title}"));
    let uuid = match device.uuid() {
        Err(NvmlError::NotSupported) if is_whole => None,
        other => Some(other.map_err(of("identify"))?),
    };
    let (total_bytes, free_bytes) = match (device.memory_info(), &mig) {
        // A process with access to one instance only cannot read the memory of the whole GPU.
        (Err(NvmlError::NoPermission), Some(instances)) => (
            instances.iter().map(|instance| instance.total_bytes).sum(),
            instances.iter().map(|instance| instance.free_bytes).sum(),
        ),
        (memory, _) => {
            memory.map(|memory| (memory.total, memory.free)).map_err(of("report the memory of"))?
        }
    };
    Ok(GpuInfo { index, name: device.name().map_err(of("name"))?, uuid, total_bytes, free_bytes, mig })
}

/// Returns the MIG instances of a GPU; `None` if it is not in MIG mode or does not support MIG.
fn instances(device: &Device<'_>, gpu: &str) -> Result<Option<Vec<GpuInfo>>, GpuError> {
    if !device.mig_mode().is_ok_and(|mode| mode.current == 1) {
        return Ok(None);
    }
    let most = device.mig_device_count().map_err(failed(format!("count the MIG instances of {gpu}")))?;
    // Some numbers are unused. An instance without access, as in a container, counts as unused.
    let taken = (0..most).filter_map(|index| Some((index, device.mig_device_by_index(index).ok()?)));
    let read = taken.map(|(index, instance)| {
        let title = format!("MIG instance {index} of {gpu}");
        info(&instance, index, &title, false, None)
    });
    read.collect::<Result<_, _>>().map(Some)
}

/// For `map_err`: reports that the driver failed to do `what`.
fn failed(what: impl Into<String>) -> impl FnOnce(NvmlError) -> GpuError {
    let what = what.into();
    |source| GpuError::Driver { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inventory_answers_on_every_machine() {
        match inventory() {
            Ok(inventory) => {
                for (position, gpu) in inventory.gpus.iter().enumerate() {
                    assert_eq!(gpu.index as usize, position);
                    assert!(gpu.uuid.as_ref().is_none_or(|uuid| uuid.starts_with("GPU-")), "{gpu:?}");
                    assert!(gpu.total_bytes > 0 && gpu.free_bytes <= gpu.total_bytes, "{gpu:?}");
                    for instance in gpu.mig.iter().flatten() {
                        assert!(
                            instance.uuid.as_deref().is_some_and(|uuid| uuid.starts_with("MIG-")),
                            "{gpu:?}"
                        );
                    }
                }
            }
            Err(GpuError::NoDriver) => {
                assert_eq!(
                    GpuError::NoDriver.to_string(),
                    "no NVIDIA driver is loaded on this machine, so no GPU can be used"
                );
            }
            Err(error) => panic!("{error}"),
        }
    }
}
