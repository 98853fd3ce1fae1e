//! How much a rank's tensors may take on its device.

use crate::plan::FRAGMENTATION_PERCENT;
use dtrain_common::recipe;
use dtrain_torch_shim::{ShimError, cuda, memory};
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

/// Settles how the allocator of GPU number `gpu` works, unless the user has made settings of it: with a `limit`, tensors and the
/// pieces between them get that much of its memory, beyond which it refuses. Called when CUDA is loaded and not yet in use.
pub(crate) fn configure(limit: Option<u64>, gpu: usize) -> Result<(), ShimError> {
    let own = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"];
    if own.iter().any(|name| std::env::var_os(name).is_some()) {
        if limit.is_some() {
            tracing::warn!(
                "PYTORCH_ALLOC_CONF is set: the GPU's allocator is left as it says, and memory.budget bounds the plan alone"
            );
        }
        return Ok(());
    }
    let limit = limit.and_then(|limit| Some((limit, cuda::total_memory(gpu).ok()?)));
    memory::configure(&settings(limit))
}

/// As PYTORCH_ALLOC_CONF takes them; `limit` is of so many bytes in all.
fn settings(limit: Option<(u64, u64)>) -> String {
    let Some((limit, total)) = limit.filter(|(limit, total)| limit < total) else {
        return ALLOCATOR.to_owned();
    };
    // Not less than the limit: the allocator takes the product's whole part.
    let share = (limit as f64 + 1.0) / total as f64;
    format!("{ALLOCATOR},per_process_memory_fraction:{share:.17}")
}

/// The bytes that the tensors of one of `local_ranks` ranks on this machine may take on `device`: the recipe's budget, or what
/// is free now less a margin; on a GPU less what is lost between its allocator's blocks.
pub(crate) fn bytes(budget: recipe::Budget, device: Device, local_ranks: usize) -> Result<u64, ShimError> {
    let rest = match budget {
        recipe::Budget::Is(size) => size.0,
        recipe::Budget::Auto if device.is_cuda() => {
            let (free, _) = memory::device_memory(device)?;
            free.saturating_sub(LIBRARIES)
        }
        recipe::Budget::Auto => {
            return Ok(match free_host_bytes() {
                0 => u64::MAX,
                free => free / 100 * HOST_PERCENT / local_ranks.max(1) as u64,
            });
        }
    };
    Ok(if device.is_cuda() { rest - rest / 100 * FRAGMENTATION_PERCENT } else { rest })
}

/// Holds the tensors on `device` to `bytes`: on the CPU from the next allocation on. A GPU's allocator was told before.
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
        let size = recipe::Budget::Is(ByteSize(1 << 20));
        assert_eq!(bytes(size, Device::Cpu, 8).unwrap(), 1 << 20);
        // Between the blocks of a GPU's allocator some is lost.
        let on_gpu = bytes(size, Device::Cuda(0), 8).unwrap();
        assert_eq!(on_gpu, (1 << 20) - (1 << 20) / 100 * FRAGMENTATION_PERCENT);
        let alone = bytes(recipe::Budget::Auto, Device::Cpu, 1).unwrap();
        let shared = bytes(recipe::Budget::Auto, Device::Cpu, 4).unwrap();
        assert!(shared < alone / 3, "{shared} of {alone}");
    }

    #[test]
    fn a_gpu_s_allocator_is_told_of_a_limit_below_what_there_is() {
        assert_eq!(settings(None), ALLOCATOR);
        assert_eq!(settings(Some((2 << 30, 1 << 30))), ALLOCATOR);
        for (limit, total) in [(1u64 << 30, 150_754_820_096u64), (14_000_000_001, 15_828_320_256)] {
            let text = settings(Some((limit, total)));
            let share: f64 = text.rsplit(':').next().unwrap().parse().unwrap();
            assert!(text.starts_with("expandable_segments:True,per_process_memory_fraction:0."), "{text}");
            let allowed = (share * total as f64) as u64;
            assert!((limit..limit + 2).contains(&allowed), "{allowed} of {limit}");
        }
    }
}
