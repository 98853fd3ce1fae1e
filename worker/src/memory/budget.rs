//! How much a rank's tensors may take on its device.

use dtrain_common::plan::FRAGMENTATION_PERCENT;
use dtrain_common::recipe;
use dtrain_torch_shim::{ShimError, memory};
use tch::Device;

use crate::data::free_host_bytes;

/// Of a GPU's free memory, what is left for the workspaces of cuBLAS, cuDNN and NCCL, which come with their first use.
const LIBRARIES: u64 = 256 << 20;

/// Of the host's free memory, what the tensors of all its ranks may take, in percent: the cache of decoded images has a
/// quarter, and what the system kills for is no error that can be answered.
const HOST_PERCENT: u64 = 60;

/// The settings of a GPU's allocator unless the user has made some: blocks grow in place, so that what is free is not in
/// pieces of sizes that nobody asks for any more.
const ALLOCATOR: &str = "expandable_segments:True";

/// Makes the device ready: keeps account of its tensors, and settles how its allocator works. Called once, before the first
/// tensor.
///
/// # Errors
/// None known on the CPU; settings that a GPU's allocator refuses.
pub(crate) fn prepare(device: Device) -> Result<(), ShimError> {
    memory::account()?;
    let own = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
    if device.is_cuda() && own.iter().all(|name| std::env::var_os(name).is_none()) {
        memory::configure(ALLOCATOR)?;
    }
    Ok(())
}

/// The bytes that the tensors of one of `local_ranks` ranks on this machine may take on `device`: the recipe's budget, or what
/// is free now less a margin.
///
/// # Errors
/// What the device reports.
pub(crate) fn bytes(budget: recipe::Budget, device: Device, local_ranks: usize) -> Result<u64, ShimError> {
    if let recipe::Budget::Size(size) = budget {
        return Ok(size.0);
    }
    if !device.is_cuda() {
        return Ok(match free_host_bytes() {
            0 => u64::MAX,
            free => free / 100 * HOST_PERCENT / local_ranks.max(1) as u64,
        });
    }
    let (free, _) = memory::device_memory(device)?;
    let rest = free.saturating_sub(LIBRARIES);
    Ok(rest - rest / 100 * FRAGMENTATION_PERCENT)
}

/// Holds the tensors on `device` to `bytes`: on the CPU from the next allocation on. A GPU holds them to its own memory, and
/// the plan to the budget.
pub(crate) fn enforce(bytes: u64, device: Device) {
    if !device.is_cuda() {
        memory::set_budget(Some(bytes));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use dtrain_common::units::ByteSize;

    #[test]
    fn a_size_is_taken_as_it_is_and_auto_is_shared() {
        let size = recipe::Budget::Size(ByteSize(1 << 20));
        assert_eq!(bytes(size, Device::Cpu, 8).unwrap(), 1 << 20);
        let alone = bytes(recipe::Budget::Auto, Device::Cpu, 1).unwrap();
        let shared = bytes(recipe::Budget::Auto, Device::Cpu, 4).unwrap();
        assert!(shared < alone / 3, "{shared} of {alone}");
    }
}
