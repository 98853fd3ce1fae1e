//! Selection of GPUs by the names that a user gives.

use std::fmt;
use std::str::FromStr;

use super::{DeviceIndex, Inventory, Visible};
use crate::env::CUDA_VISIBLE_DEVICES;

/// The value of CUDA_DEVICE_ORDER with NVML's order.
const PCI_BUS_ID: &str = "PCI_BUS_ID";

/// One GPU or MIG instance as a user names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum GpuId {
    /// Its number among the visible devices, from 0.
    Index(u32),
    /// `GPU-...` or `MIG-...`: a UUID or any unique prefix.
    Uuid(String),
}

/// Error for a text that names no GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a GPU; give numbers such as 0, or UUIDs that begin with GPU- or MIG-, separated by commas"
)]
pub struct GpuIdError(pub String);

/// Reason why the named devices cannot be used, with a list of the visible ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChoiceError(String);

impl FromStr for GpuId {
    type Err = GpuIdError;

    fn from_str(text: &str) -> Result<Self, GpuIdError> {
        let text = text.trim();
        // Older drivers name instances `MIG-GPU-.../1/0`.
        let is_named = |rest: &str| {
            !rest.is_empty() && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '/')
        };
        match text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")) {
            Some(rest) => is_named(rest).then(|| Self::Uuid(text.into())),
            None => text.parse().ok().filter(|_| !text.starts_with('+')).map(Self::Index),
        }
        .ok_or_else(|| GpuIdError(text.into()))
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
        }
    }
}

impl Visible {
    /// Returns the devices that `ids` name, in their order. An index counts the visible devices.
    pub fn choose(
        &self,
        inventory: &Inventory,
        ids: &[GpuId],
        cuda_device_order: Option<&str>,
    ) -> Result<Vec<DeviceIndex>, ChoiceError> {
        self.check_known_order(inventory, cuda_device_order)?;
        let mut chosen: Vec<DeviceIndex> = Vec::new();
        for (position, id) in ids.iter().enumerate() {
            let device = self.find(inventory, id)?;
            if let Some(first) = chosen.iter().position(|earlier| *earlier == device) {
                let (title, first, second) = (inventory.title(device), &ids[first], &ids[position]);
                let what = format!("`{first}` and `{second}` both name {title}; name each device once:");
                return Err(self.choice_error(inventory, &what));
            }
            chosen.push(device);
        }
        Ok(chosen)
    }

    /// Returns the devices of `count` workers that each take the device of their local rank. `None` if CUDA
    /// may order the devices differently from NVML, or chooses one of several MIG instances itself.
    pub fn first_devices(
        &self,
        inventory: &Inventory,
        count: usize,
        cuda_device_order: Option<&str>,
    ) -> Option<Vec<DeviceIndex>> {
        self.check_known_order(inventory, cuda_device_order).ok()?;
        let instances: Vec<_> = self.instances(inventory).collect();
        if !instances.is_empty() {
            return (instances.len() == 1 && count == 1).then_some(instances);
        }
        let is_whole = |device: &DeviceIndex| inventory.gpus[device.gpu].mig.is_none();
        let mut usable: Vec<_> = self.devices().iter().copied().filter(is_whole).collect();
        let in_order = self.list().is_some() || !inventory.is_mixed() || is_bus_order(cuda_device_order);
        if count > usable.len() || (count < usable.len() && !in_order) {
            return None;
        }
        usable.truncate(count);
        Some(usable)
    }

    /// Checks that the devices of an inherited list of numbers are known.
    fn check_known_order(&self, inventory: &Inventory, order: Option<&str>) -> Result<(), ChoiceError> {
        let (true, Some(list)) = (self.by_index, self.list()) else { return Ok(()) };
        let (why, remedy) = if inventory.gpus.iter().any(|gpu| gpu.mig.is_some()) {
            ("GPUs in MIG mode, which CUDA numbers differently", "")
        } else if inventory.is_mixed() && !is_bus_order(order) {
            (
                "GPUs of several kinds, which CUDA numbers from the fastest on",
                ", or number them as nvidia-smi does with CUDA_DEVICE_ORDER=PCI_BUS_ID",
            )
        } else {
            return Ok(());
        };
        Err(ChoiceError(format!(
            "cannot determine the GPUs of {CUDA_VISIBLE_DEVICES}={list}: this machine has {why}; list UUIDs{remedy}"
        )))
    }

    fn find(&self, inventory: &Inventory, id: &GpuId) -> Result<DeviceIndex, ChoiceError> {
        let error = |what: String| self.choice_error(inventory, &what);
        let not_there = || {
            let list = self.list().map(|list| format!(" visible with {CUDA_VISIBLE_DEVICES}={list}"));
            let where_from = list.unwrap_or_else(|| " of this machine".to_owned());
            error(format!("`{id}` is not a GPU{where_from}; choose from:"))
        };
        let device = match id {
            GpuId::Index(index) => *self.devices().get(*index as usize).ok_or_else(not_there)?,
            GpuId::Uuid(uuid) => {
                let everywhere = inventory.with_uuid_prefix(uuid);
                let mut here = everywhere.iter().filter(|device| self.contains(**device));
                match (here.next(), here.next(), &everywhere[..], self.list()) {
                    (Some(device), None, ..) => *device,
                    (None, _, [hidden], Some(list)) => {
                        let title = inventory.title(*hidden);
                        return Err(error(format!(
                            "`{id}` is {title}, which {CUDA_VISIBLE_DEVICES}={list} hides; unset the variable, or choose from:"
                        )));
                    }
                    (None, ..) => return Err(not_there()),
                    _ => {
                        return Err(error(format!(
                            "`{id}` matches several UUIDs; give a longer prefix, or choose from:"
                        )));
                    }
                }
            }
        };
        let title = inventory.title(device);
        match &inventory.gpus[device.gpu].mig {
            Some(instances) if !device.is_instance() => Err(error(if instances.is_empty() {
                format!(
                    "{title} is in MIG mode without instances; create instances with `nvidia-smi mig -cgi`, disable MIG \
                     with `nvidia-smi -mig 0`, or choose from:"
                )
            } else {
                format!(
                    "{title} is divided into MIG instances, so CUDA cannot use it as a whole; name its instances by UUID:"
                )
            })),
            _ => Ok(device),
        }
    }

    fn choice_error(&self, inventory: &Inventory, what: &str) -> ChoiceError {
        ChoiceError(format!("{what}\n{}", self.choices(inventory)))
    }

    /// Lists the visible devices, one a line: number, name, memory, UUID.
    fn choices(&self, inventory: &Inventory) -> String {
        let mut lines = Vec::new();
        for (number, device) in self.devices().iter().enumerate() {
            // The list counts the visible devices only, so add the machine's own number.
            let title = self.list().map(|_| format!("{}, ", inventory.title(*device)));
            let title = title.unwrap_or_default();
            let whole = !device.is_instance();
            let in_mig = whole && inventory.gpus[device.gpu].mig.is_some();
            let mode = if in_mig { ", in MIG mode" } else { "" };
            lines.push(format!("  {number}: {title}{}{mode}", inventory.details(*device)));
            let instances = inventory.instances(device.gpu).filter(|_| whole);
            let line = |device| format!("     instance: {}", inventory.details(device));
            lines.extend(instances.map(line));
        }
        lines.join("\n")
    }
}

/// Returns whether this value of CUDA_DEVICE_ORDER gives NVML's order, also for GPUs of several kinds.
fn is_bus_order(order: Option<&str>) -> bool {
    order.map(str::trim) == Some(PCI_BUS_ID)
}

#[cfg(test)]
mod tests;
