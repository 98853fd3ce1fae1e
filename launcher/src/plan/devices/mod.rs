//! Selects the workers' devices, and sets their variables.

use crate::cli::GpuIds;
use anyhow::Context;
use dtrain_common::env::{CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, LOCAL_RANK};
use dtrain_common::gpu::{DeviceIndex, GpuError, Inventory, Nvidia, Versions, Visible};
use dtrain_common::text::counted;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// The machine's GPUs, and the launcher's environment variables for them.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) inventory: Result<Inventory, GpuError>,
    /// The driver's versions; `None` if unknown.
    pub(super) versions: Option<Versions>,
    pub(super) list: Option<String>,
    pub(super) order: Option<String>,
}

/// The workers' environment variables for GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Devices {
    /// The launcher's own variables.
    Inherited,
    /// No GPU.
    Cpu,
    /// These GPUs.
    Chosen(Chosen),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InUse {
    pub(super) inventory: Inventory,
    /// In the order of the workers; empty if the order of the visible GPUs is not known.
    pub(super) devices: Vec<DeviceIndex>,
    /// The driver's.
    pub(super) versions: Option<Versions>,
}

/// GPUs that the user has named, in the order of the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    devices: Vec<DeviceIndex>,
    /// The entries of CUDA_VISIBLE_DEVICES.
    entries: Vec<String>,
    /// Whether the entries are numbers in the order of the PCI bus.
    by_index: bool,
    /// Whether a worker sees only its own GPU, as the first: CUDA shows a process at most one MIG instance.
    alone: bool,
    /// Such as `GPUs 4 and 6 (NVIDIA H200)`, with the machine's numbers.
    pub(super) described: String,
}

impl Machine {
    /// Reads the driver and the environment.
    pub(super) fn probe() -> Self {
        let var = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let driver = Nvidia::open();
        let versions = driver.as_ref().ok().and_then(|driver| driver.versions().ok());
        Self {
            inventory: driver.and_then(|driver| driver.inventory()),
            versions,
            list: var(CUDA_VISIBLE_DEVICES),
            order: var(CUDA_DEVICE_ORDER),
        }
    }

    /// Returns the number of devices that a worker sees under the launcher's environment.
    pub(super) fn count(&self) -> usize {
        match &self.inventory {
            Ok(inventory) => self.visible(inventory).count(inventory),
            Err(_) => 0,
        }
    }

    /// Returns whether a worker sees a MIG instance; CUDA shows it only one.
    pub(super) fn shows_an_instance(&self) -> bool {
        let shows = |inventory| self.visible(inventory).instances(inventory).next().is_some();
        self.inventory.as_ref().is_ok_and(shows)
    }

    /// Describes the devices that a worker sees (`1 GPU (NVIDIA H200)`), or the reason if it sees no device.
    pub(super) fn described(&self) -> String {
        let inventory = match &self.inventory {
            Ok(inventory) => inventory,
            Err(error) => return error.to_string(),
        };
        let visible = self.visible(inventory);
        let all = inventory.gpus.len();
        let count = visible.count(inventory);
        if all == 0 {
            return "the NVIDIA driver finds no GPU".to_owned();
        }
        if count == 0 {
            return match &self.list {
                Some(list) if visible.devices().is_empty() && Visible::names_a_device(list) => format!(
                    "{CUDA_VISIBLE_DEVICES}={list:?} shows none of the {} of this machine",
                    counted(all, "GPU")
                ),
                Some(list) if visible.devices().is_empty() => format!(
                    "{CUDA_VISIBLE_DEVICES}={list:?} hides the {} of this machine",
                    counted(all, "GPU")
                ),
                _ => "the visible GPUs are in MIG mode and have no instances".to_owned(),
            };
        }
        let instances: Vec<_> = visible.instances(inventory).collect();
        if let [first, ..] = instances[..] {
            let shown = match counted(instances.len(), "MIG instance") {
                one if instances.len() == 1 => one,
                several => format!("1 of {several}"),
            };
            return format!("{shown} ({})", inventory.device(first).name);
        }
        let usable = |device: &&DeviceIndex| inventory.gpus[device.gpu()].mig.is_none();
        let names = names(inventory, visible.devices().iter().filter(usable).copied());
        format!("{} ({names})", counted(count, "GPU"))
    }

    /// Returns whether CUDA_VISIBLE_DEVICES names devices, and shows none of the driver's.
    pub(super) fn names_only_unknown_devices(&self) -> bool {
        self.list.as_deref().is_some_and(Visible::names_a_device)
            && self.inventory.is_ok()
            && self.count() == 0
    }

    /// Returns the error of a driver that exists and does not answer.
    pub(super) fn failure(&self) -> Option<String> {
        let error = self.inventory.as_ref().err();
        error.filter(|error| matches!(error, GpuError::Driver { .. })).map(ToString::to_string)
    }

    /// Returns the GPUs of this number of workers under the launcher's environment; `None` without GPUs.
    pub(super) fn in_use(self, workers: usize) -> Option<InUse> {
        let (list, order) = (self.list, self.order);
        let (inventory, versions) = (self.inventory.ok()?, self.versions);
        let visible = Visible::new(&inventory, list.as_deref());
        if visible.count(&inventory) == 0 {
            return None;
        }
        let devices = visible.first_devices(&inventory, workers, order.as_deref());
        Some(InUse { devices: devices.unwrap_or_default(), inventory, versions })
    }

    /// Returns the GPUs of workers that get `chosen`.
    pub(super) fn in_use_as(self, chosen: &Chosen) -> Option<InUse> {
        let (devices, versions) = (chosen.devices.clone(), self.versions);
        Some(InUse { devices, inventory: self.inventory.ok()?, versions })
    }

    /// Returns the GPUs that the user has named; an error lists the visible ones.
    pub(super) fn choose(&self, wanted: &GpuIds) -> anyhow::Result<Chosen> {
        let flag = || format!("--gpu-ids {wanted}");
        let remedy = match &self.inventory {
            Ok(inventory) if !self.visible(inventory).devices().is_empty() => {
                let devices = self
                    .visible(inventory)
                    .choose(inventory, &wanted.ids, self.order.as_deref())
                    .with_context(flag)?;
                return Ok(Chosen::new(inventory, &devices));
            }
            Ok(inventory) if !inventory.gpus.is_empty() => {
                "unset it, or give --gpu-ids none for workers on the CPU"
            }
            _ => "leave the flag out, or give --gpu-ids none, for workers on the CPU",
        };
        Err(anyhow::anyhow!("{}; {remedy}", self.described()).context(flag()))
    }

    fn visible(&self, inventory: &Inventory) -> Visible {
        Visible::new(inventory, self.list.as_deref())
    }
}

impl Chosen {
    fn new(inventory: &Inventory, devices: &[DeviceIndex]) -> Self {
        let uuids = devices.iter().map(|device| inventory.uuid(*device).map(str::to_owned));
        // All entries are of one kind. A driver that reports no UUID does not support MIG.
        let (entries, by_index) = match uuids.collect::<Option<Vec<_>>>() {
            Some(uuids) => (uuids, false),
            None => (devices.iter().map(|device| device.gpu().to_string()).collect(), true),
        };
        let instances = devices.iter().any(|device| device.is_instance());
        Self {
            devices: devices.to_vec(),
            entries,
            by_index,
            alone: instances && devices.len() > 1,
            described: described(inventory, devices),
        }
    }
}

impl Devices {
    /// Returns the workers' CUDA_VISIBLE_DEVICES; `None` if it is not set.
    pub(super) fn list(&self) -> Option<String> {
        match self {
            Self::Inherited => {
                std::env::var_os(CUDA_VISIBLE_DEVICES).map(|list| list.to_string_lossy().into_owned())
            }
            Self::Cpu => Some(String::new()),
            Self::Chosen(chosen) => Some(chosen.entries.join(",")),
        }
    }

    /// Returns the number of devices.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Inherited => Machine::probe().count(),
            Self::Cpu => 0,
            Self::Chosen(chosen) => chosen.entries.len(),
        }
    }

    /// Adds the variables of the worker of `local_rank`. `inherited` reads the launcher's environment.
    pub(crate) fn set_vars(
        &self,
        local_rank: usize,
        vars: &mut Vec<(&'static str, OsString)>,
        inherited: impl Fn(&str) -> Option<OsString>,
    ) {
        match self {
            Self::Inherited => {}
            Self::Cpu => vars.push((CUDA_VISIBLE_DEVICES, OsString::new())),
            Self::Chosen(chosen) => {
                let list = match chosen.entries.get(local_rank) {
                    Some(own) if chosen.alone => own.clone(),
                    _ => chosen.entries.join(","),
                };
                vars.push((CUDA_VISIBLE_DEVICES, list.into()));
                // UUIDs work in every order; with this variable the program's own calls match nvidia-smi.
                if chosen.by_index || inherited(CUDA_DEVICE_ORDER).is_none() {
                    vars.push((CUDA_DEVICE_ORDER, "PCI_BUS_ID".into()));
                }
                let rank = vars.iter_mut().find(|(name, _)| *name == LOCAL_RANK);
                if let Some((_, value)) = rank.filter(|_| chosen.alone) {
                    *value = "0".into();
                }
            }
        }
    }
}

/// Returns the number of GPUs by the kernel module alone; `None` if CUDA_VISIBLE_DEVICES is set.
pub(super) fn listed_by_the_kernel() -> Option<usize> {
    if std::env::var_os(CUDA_VISIBLE_DEVICES).is_some() {
        return None;
    }
    let folders = fs::read_dir(Path::new("/proc/driver/nvidia/gpus")).ok()?;
    Some(folders.filter_map(Result::ok).count())
}

/// Returns titles and names: `GPUs 4 and 6 (NVIDIA H200)`, `MIG instance 1 of GPU 0 (NVIDIA A100 ...)`.
fn described(inventory: &Inventory, devices: &[DeviceIndex]) -> String {
    let names = names(inventory, devices.iter().copied());
    let titles: Vec<_> = if devices.len() > 1 && !devices.iter().any(|device| device.is_instance()) {
        devices.iter().map(|device| device.gpu().to_string()).collect()
    } else {
        devices.iter().map(|device| inventory.title(*device)).collect()
    };
    let titles = match &titles[..] {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => titles.concat(),
    };
    let several = titles.starts_with(|first: char| first.is_ascii_digit());
    format!("{}{titles} ({names})", if several { "GPUs " } else { "" })
}

/// Returns the product names of these devices, each once.
fn names(inventory: &Inventory, devices: impl Iterator<Item = DeviceIndex>) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in devices.map(|device| inventory.device(device).name.as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

#[cfg(test)]
pub(super) mod fake;
#[cfg(test)]
mod tests;
