//! The GPUs of this machine, from NVIDIA's management library (NVML), which is loaded at run time: a machine
//! without a driver gets [`GpuError::NoDriver`], never a failure to start.

use std::ffi::OsStr;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use serde::{Deserialize, Serialize};

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInfo {
    /// NVML's index, which orders GPUs by PCI bus.
    pub index: u32,
    /// Product name.
    pub name: String,
    /// `GPU-...`, the same across restarts.
    pub uuid: String,
    /// Memory of the device in bytes.
    pub total_bytes: u64,
    /// Memory nobody uses at the moment, in bytes.
    pub free_bytes: u64,
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

/// Whether every GPU of the machine computes in bfloat16 itself (compute capability 8.0, Ampere); false where that cannot
/// be found out.
pub fn all_compute_in_bf16() -> bool {
    let capable = |nvml: &Nvml, index| {
        let device = nvml.device_by_index(index)?;
        Ok::<_, NvmlError>(device.cuda_compute_capability()?.major >= 8)
    };
    load().is_ok_and(|nvml| {
        nvml.device_count()
            .is_ok_and(|count| (0..count).all(|index| capable(&nvml, index).unwrap_or(false)))
    })
}

/// Every GPU of the machine in NVML's order, whatever CUDA_VISIBLE_DEVICES says.
///
/// # Errors
/// [`GpuError::NoDriver`] without a driver; [`GpuError::Driver`] when it fails.
pub fn inventory() -> Result<Vec<GpuInfo>, GpuError> {
    let nvml = load()?;
    let count = nvml
        .device_count()
        .map_err(|source| failed("count the GPUs", source))?;
    (0..count)
        .map(|index| {
            let device = nvml
                .device_by_index(index)
                .map_err(|source| failed(&format!("open GPU {index}"), source))?;
            let name = device
                .name()
                .map_err(|source| failed(&format!("name GPU {index}"), source))?;
            let uuid = device
                .uuid()
                .map_err(|source| failed(&format!("identify GPU {index}"), source))?;
            let memory = device
                .memory_info()
                .map_err(|source| failed(&format!("tell the memory of GPU {index}"), source))?;
            Ok(GpuInfo {
                index,
                name,
                uuid,
                total_bytes: memory.total,
                free_bytes: memory.free,
            })
        })
        .collect()
}

/// The library by the name that every driver installs; the bare `.so` comes with development packages only.
fn load() -> Result<Nvml, GpuError> {
    Nvml::builder()
        .lib_path(OsStr::new("libnvidia-ml.so.1"))
        .init()
        .or_else(|_| Nvml::init())
        .map_err(|source| match source {
            NvmlError::LibloadingError(_) | NvmlError::DriverNotLoaded | NvmlError::LibraryNotFound => {
                GpuError::NoDriver
            }
            source => failed("start", source),
        })
}

fn failed(what: &str, source: NvmlError) -> GpuError {
    GpuError::Driver {
        what: what.into(),
        source,
    }
}

/// How many GPUs a CUDA program sees under this value of CUDA_VISIBLE_DEVICES.
///
/// Unset: all. Otherwise a list of indexes or of (beginnings of) UUIDs, where CUDA stops at the first entry that
/// names no GPU, such as `-1`, and sees none at all when one is named twice. A list of MIG instances counts as one:
/// a process sees a single instance, and the inventory does not list them.
pub fn visible_count(inventory: &[GpuInfo], cuda_visible_devices: Option<&str>) -> usize {
    let Some(list) = cuda_visible_devices else {
        return inventory.len();
    };
    if list.trim_start().starts_with("MIG-") {
        return usize::from(!inventory.is_empty());
    }
    let mut seen = Vec::new();
    for entry in list.split(',') {
        let Some(position) = find(inventory, entry.trim()) else {
            break;
        };
        if seen.contains(&position) {
            return 0;
        }
        seen.push(position);
    }
    seen.len()
}

/// Position in the inventory of an index or of a UUID's beginning that fits one GPU alone.
fn find(inventory: &[GpuInfo], entry: &str) -> Option<usize> {
    if entry.starts_with("GPU-") {
        let mut fitting = inventory
            .iter()
            .enumerate()
            .filter(|(_, gpu)| gpu.uuid.starts_with(entry));
        return match (fitting.next(), fitting.next()) {
            (Some((position, _)), None) => Some(position),
            _ => None,
        };
    }
    // Indexes count the visible GPUs from 0; an unsigned parse would take "+1".
    if !entry.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    entry.parse().ok().filter(|index| *index < inventory.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(count: u32) -> Vec<GpuInfo> {
        (0..count)
            .map(|index| GpuInfo {
                index,
                name: "GPU".into(),
                uuid: format!("GPU-{index}{index}aa-0001"),
                total_bytes: 1 << 34,
                free_bytes: 1 << 33,
            })
            .collect()
    }

    #[test]
    fn visible_devices_count_as_in_cuda() {
        let four = gpus(4);
        for (list, count) in [
            (None, 4),
            (Some(""), 0),
            (Some(" "), 0),
            (Some("-1"), 0),
            (Some("0"), 1),
            (Some("3,1"), 2),
            (Some(" 0 , 2 "), 2),
            (Some("0,1,-1,2"), 2),
            (Some("0,9,1"), 1),
            (Some("9"), 0),
            (Some("+1"), 0),
            (Some("none"), 0),
            (Some("NoDevFiles"), 0),
            (Some("0,0"), 0),
            (Some("1,GPU-11aa-0001"), 0),
            (Some("GPU-00aa-0001"), 1),
            (Some("GPU-00,GPU-3"), 2),
            (Some("GPU-"), 0),
            (Some("GPU-ff"), 0),
            (Some("MIG-1234"), 1),
            (Some("0,"), 1),
            (Some("99999999999999999999"), 0),
        ] {
            assert_eq!(visible_count(&four, list), count, "{list:?}");
        }
        assert_eq!(visible_count(&[], None), 0);
        assert_eq!(visible_count(&[], Some("0")), 0);
        assert_eq!(visible_count(&[], Some("MIG-1234")), 0);
    }

    #[test]
    fn the_inventory_answers_on_every_machine() {
        match inventory() {
            Ok(gpus) => {
                for gpu in gpus {
                    assert!(gpu.uuid.starts_with("GPU-"), "{gpu:?}");
                    assert!(
                        gpu.total_bytes > 0 && gpu.free_bytes <= gpu.total_bytes,
                        "{gpu:?}"
                    );
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
