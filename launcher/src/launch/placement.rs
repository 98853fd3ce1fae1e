//! On which GPU and on which CPU cores each worker computes, where the user asks for more than the default.

use super::devices::Devices;
use super::numa::{self, Bound};
use super::size::plural;
use crate::cli::ContractArgs;
use anyhow::bail;

/// The places of all workers.
#[derive(Debug)]
pub(super) struct Placement {
    /// For each worker the only GPU that it sees, where each has one of its own and sees itself as local rank 0.
    /// Empty where there is no GPU.
    pub(super) own_devices: Option<Vec<String>>,
    /// The CPU cores.
    pub(super) bound: Bound,
}

impl Placement {
    /// The places of `workers` workers as asked for, on these devices.
    ///
    /// # Errors
    /// The machine has no such places.
    pub(super) fn new(args: &ContractArgs, workers: usize, devices: &Devices) -> anyhow::Result<Self> {
        let visible = devices.list();
        Ok(Self {
            own_devices: own_devices(args.virtual_local_rank, workers, devices)?,
            bound: numa::bind(args.numa_binding, workers, visible.as_deref())?,
        })
    }
}

/// For each worker a GPU of its own, if `wanted`; an empty list where there is no GPU.
///
/// # Errors
/// There are more workers than GPUs.
fn own_devices(wanted: bool, workers: usize, devices: &Devices) -> anyhow::Result<Option<Vec<String>>> {
    if !wanted {
        return Ok(None);
    }
    share_out(devices.list().as_deref(), devices.count(), workers).map(Some)
}

/// The first `gpus` entries of the list of visible devices, which numbers all of them when it is not set.
fn share_out(visible: Option<&str>, gpus: usize, workers: usize) -> anyhow::Result<Vec<String>> {
    if gpus > 0 && workers > gpus {
        bail!(
            "--virtual-local-rank gives each worker a GPU of its own, but {workers} workers are asked for and {gpus} \
             GPU{} {} visible; use --nproc {gpus}",
            plural(gpus),
            if gpus == 1 { "is" } else { "are" }
        );
    }
    let named: Vec<String> = match visible {
        Some(list) => list.split(',').map(|entry| entry.trim().to_owned()).collect(),
        None => (0..gpus).map(|index| index.to_string()).collect(),
    };
    Ok(named.into_iter().take(gpus).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn inherited_devices_are_shared_out_in_their_order() {
        assert_eq!(share_out(None, 3, 2).unwrap(), ["0", "1", "2"]);
        assert_eq!(share_out(Some("6, 4"), 2, 2).unwrap(), ["6", "4"]);
        // CUDA stops at the first entry that is none.
        assert_eq!(share_out(Some("1,-1,0"), 1, 1).unwrap(), ["1"]);
        assert!(share_out(Some(""), 0, 3).unwrap().is_empty());
        assert!(share_out(None, 0, 3).unwrap().is_empty());
        let error = share_out(Some("0,1"), 2, 3).unwrap_err().to_string();
        assert!(
            error.contains("3 workers") && error.contains("use --nproc 2"),
            "{error}"
        );
    }
}
