//! The number of workers, and the devices and cores of each.

use super::devices::{self, Machine};
use super::numa::{self, CoreBinding};
use super::size::{self, Size, cores};
use crate::cli::{LaunchArgs, Nproc};
use anyhow::bail;
use dtrain_common::text::counted;

/// Returns the number of workers, and their devices.
pub(super) fn measure(args: &LaunchArgs, is_training: bool) -> anyhow::Result<Size> {
    let request = size::SizeRequest {
        is_training,
        nproc: args.nproc.unwrap_or(Nproc::Auto),
        is_asked: args.nproc.is_some(),
        gpu_ids: args.gpus.gpu_ids.as_ref(),
    };
    let host = size::HostInfo { cores: cores(), listed_gpus: devices::listed_by_the_kernel() };
    size::size(request, host, Machine::probe)
}

/// Returns each worker's GPU and CPU cores, if flags ask for them.
pub(super) fn placement(
    args: &LaunchArgs,
    size: &Size,
) -> anyhow::Result<(Option<Vec<String>>, CoreBinding)> {
    let visible = size.devices.list();
    let share = || share_out(visible.as_deref(), size.devices.count(), size.nproc);
    let own = args.contract.virtual_local_rank.then(share).transpose()?;
    let core_binding = numa::bind(args.contract.numa_binding, size.nproc, visible.as_deref())?;
    Ok((own, core_binding))
}

/// Returns the first `gpus` entries of the visible devices; without a list, their numbers.
fn share_out(visible: Option<&str>, gpus: usize, workers: usize) -> anyhow::Result<Vec<String>> {
    if gpus > 0 && workers > gpus {
        bail!(
            "--virtual-local-rank needs one GPU per worker, but for {workers} workers {} {} visible; use --nproc \
             {gpus}",
            counted(gpus, "GPU"),
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
        // CUDA stops at the first invalid entry.
        assert_eq!(share_out(Some("1,-1,0"), 1, 1).unwrap(), ["1"]);
        assert!(share_out(Some(""), 0, 3).unwrap().is_empty());
        assert!(share_out(None, 0, 3).unwrap().is_empty());
        let error = share_out(Some("0,1"), 2, 3).unwrap_err().to_string();
        assert!(error.contains("3 workers") && error.contains("use --nproc 2"), "{error}");
    }
}
