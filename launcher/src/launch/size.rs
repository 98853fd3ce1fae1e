//! How many workers: what was asked for against what the machine has.

use crate::cli::Nproc;
use dtrain_common::gpu::{self, GpuError, GpuInfo};

/// The GPUs that the workers can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Devices {
    /// Number of visible GPUs.
    pub(super) gpus: usize,
    /// The visible GPUs in words (`the CPU`, `1 GPU (NVIDIA H200)`), or why there are none.
    pub(super) described: String,
}

impl Devices {
    /// Asks the driver.
    pub(super) fn look() -> Self {
        let visible =
            std::env::var_os("CUDA_VISIBLE_DEVICES").map(|list| list.to_string_lossy().into_owned());
        Self::of(gpu::inventory(), visible.as_deref())
    }

    fn of(inventory: Result<Vec<GpuInfo>, GpuError>, visible: Option<&str>) -> Self {
        let inventory = match inventory {
            Ok(inventory) => inventory,
            Err(error) => {
                return Self {
                    gpus: 0,
                    described: error.to_string(),
                };
            }
        };
        let gpus = gpu::visible_count(&inventory, visible);
        let described = match (inventory.len(), visible) {
            (0, _) => "the NVIDIA driver finds no GPU".to_owned(),
            (all, Some(list)) if gpus == 0 => {
                format!(
                    "CUDA_VISIBLE_DEVICES={list:?} hides the {all} GPU{} of this machine",
                    plural(all)
                )
            }
            _ => {
                let mut names: Vec<&str> = inventory.iter().map(|gpu| gpu.name.as_str()).collect();
                names.dedup();
                format!("{gpus} GPU{} ({})", plural(gpus), names.join(", "))
            }
        };
        Self { gpus, described }
    }
}

/// The number of workers, and a sentence for the user where it is not what one might expect.
///
/// # Errors
/// A GPU was demanded and none is visible.
pub(super) fn workers(
    wanted: Nproc,
    devices: impl FnOnce() -> Devices,
    cores: usize,
) -> anyhow::Result<(usize, Option<String>)> {
    match wanted {
        Nproc::Count(count) => Ok((count, None)),
        Nproc::Cpu => Ok((cores, None)),
        Nproc::Auto => match devices() {
            Devices { gpus: 0, described } => {
                Ok((1, Some(format!("{described}; starting 1 worker on the CPU"))))
            }
            Devices { gpus, .. } => Ok((gpus, None)),
        },
        Nproc::Gpu => match devices() {
            Devices { gpus: 0, described } => {
                anyhow::bail!("--nproc gpu: {described}; use --nproc N for N workers on the CPU")
            }
            Devices { gpus, .. } => Ok((gpus, None)),
        },
    }
}

/// Cores that this process may use; 1 where the system does not tell.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The `s` of a number that is not one.
pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn inventory(count: u32) -> Vec<GpuInfo> {
        (0..count)
            .map(|index| GpuInfo {
                index,
                name: "NVIDIA T4".into(),
                uuid: format!("GPU-{index}"),
                total_bytes: 1 << 34,
                free_bytes: 1 << 33,
            })
            .collect()
    }

    fn size(wanted: Nproc, gpus: u32, visible: Option<&str>) -> anyhow::Result<(usize, Option<String>)> {
        workers(wanted, || Devices::of(Ok(inventory(gpus)), visible), 6)
    }

    #[test]
    fn auto_takes_the_visible_gpus() {
        assert_eq!(size(Nproc::Auto, 4, None).unwrap(), (4, None));
        assert_eq!(size(Nproc::Auto, 4, Some("1,3")).unwrap(), (2, None));
        assert_eq!(size(Nproc::Gpu, 4, Some("0")).unwrap(), (1, None));
    }

    #[test]
    fn without_a_gpu_auto_says_so_and_gpu_refuses() {
        let no_driver = || Devices::of(Err(GpuError::NoDriver), None);
        let (count, note) = workers(Nproc::Auto, no_driver, 6).unwrap();
        assert_eq!(count, 1);
        assert!(note.unwrap().contains("1 worker on the CPU"));
        assert!(
            workers(Nproc::Gpu, no_driver, 6)
                .unwrap_err()
                .to_string()
                .starts_with("--nproc gpu: ")
        );
        let (count, note) = size(Nproc::Auto, 2, Some("")).unwrap();
        assert_eq!(count, 1);
        assert!(
            note.unwrap()
                .starts_with("CUDA_VISIBLE_DEVICES=\"\" hides the 2 GPUs")
        );
        assert!(size(Nproc::Gpu, 0, None).is_err());
    }

    #[test]
    fn a_number_and_the_cores_need_no_driver() {
        let never = || -> Devices { panic!("the driver was asked") };
        assert_eq!(workers(Nproc::Count(3), never, 6).unwrap(), (3, None));
        assert_eq!(workers(Nproc::Cpu, never, 6).unwrap(), (6, None));
    }

    #[test]
    fn devices_in_words() {
        assert_eq!(Devices::of(Ok(inventory(1)), None).described, "1 GPU (NVIDIA T4)");
        assert_eq!(
            Devices::of(Ok(inventory(3)), Some("0,1")).described,
            "2 GPUs (NVIDIA T4)"
        );
    }
}
