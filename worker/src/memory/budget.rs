//! The limit on the memory of a rank's tensors on its device.

use super::without_gaps;
use dtrain_common::env::WorkerEnv;
use dtrain_common::units::ByteSize;
use dtrain_recipe as recipe;
use dtrain_torch_shim::{ShimError, cuda, memory};
use tch::Device;

use crate::data::free_host_bytes;
use crate::device::{self, DeviceError};

/// GPU memory left free for workspaces, which cuBLAS, cuDNN and NCCL allocate at first use.
const LIBRARIES: u64 = 256 << 20;

/// Percentage of the host's free memory for the tensors of all its ranks. The cache of decoded images takes a
/// quarter, and beyond the host's memory the system kills instead of returning an error.
pub(crate) const HOST_PERCENT: u64 = 60;

/// Default settings of a GPU's allocator: blocks grow in place, which avoids free pieces of unused sizes.
const ALLOCATOR: &str = "expandable_segments:True";

/// Loads CUDA and configures the allocator of the rank's GPU, unless the user has done so. With a `limit`, tensors and the gaps
/// between them may take that many bytes of its memory. Called before [`device::choose`], which brings CUDA into use.
pub(crate) fn configure(limit: Option<ByteSize>, env: &WorkerEnv) -> Result<(), DeviceError> {
    if !device::load_cuda(env)? {
        return Ok(());
    }
    if is_allocator_of_user() {
        if limit.is_some() {
            tracing::warn!(
                "PYTORCH_ALLOC_CONF is set: memory.budget limits only the plan, not the GPU's allocator"
            );
        }
        return Ok(());
    }
    let limit = limit.and_then(|limit| Some((limit.0, cuda::total_memory(env.gpu).ok()?)));
    memory::configure(&settings(limit)).map_err(|source| DeviceError::Failed { rank: env.rank, source })
}

/// Returns whether the user has configured the allocator of GPUs.
pub(crate) fn is_allocator_of_user() -> bool {
    ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"].iter().any(|name| std::env::var_os(name).is_some())
}

/// Returns settings for PYTORCH_ALLOC_CONF. `limit` is a limit and the GPU's total memory, in bytes.
fn settings(limit: Option<(u64, u64)>) -> String {
    let Some((limit, total)) = limit.filter(|(limit, total)| limit < total) else {
        return ALLOCATOR.to_owned();
    };
    // Rounds up to the limit: the allocator takes the integer part of the product.
    let share = (limit as f64 + 1.0) / total as f64;
    format!("{ALLOCATOR},per_process_memory_fraction:{share:.17}")
}

/// Returns the bytes that the tensors of one of `local_ranks` ranks on this machine may take on `device`: the
/// recipe's budget, or the free memory less a margin. On a GPU, fragmentation of the allocator is subtracted.
pub(crate) fn bytes(budget: recipe::Budget, device: Device, local_ranks: usize) -> Result<u64, ShimError> {
    let rest = match budget {
        recipe::Budget::Value(size) => size.0,
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
    Ok(if device.is_cuda() { without_gaps(rest) } else { rest })
}

/// Returns [`bytes`], and limits the tensors to it.
pub(crate) fn allow(budget: recipe::Budget, device: Device, local_ranks: usize) -> Result<u64, ShimError> {
    let allowed = bytes(budget, device, local_ranks)?;
    enforce(allowed, device);
    Ok(allowed)
}

/// Limits the tensors on a CPU to `bytes`, from the next allocation on; [`configure`] has limited a GPU's.
pub(crate) fn enforce(bytes: u64, device: Device) {
    if !device.is_cuda() {
        memory::set_budget(Some(bytes));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_size_is_used_as_is_and_auto_is_shared() {
        let size = recipe::Budget::Value(ByteSize(1 << 20));
        assert_eq!(bytes(size, Device::Cpu, 8).unwrap(), 1 << 20);
        // A GPU's allocator loses some memory between its blocks, and in its last segments.
        let on_gpu =
            |mib: u64| bytes(recipe::Budget::Value(ByteSize(mib << 20)), Device::Cuda(0), 8).unwrap() >> 20;
        assert_eq!([on_gpu(1), on_gpu(160), on_gpu(2000)], [0, 100, 1900]);
        let alone = bytes(recipe::Budget::Auto, Device::Cpu, 1).unwrap();
        let shared = bytes(recipe::Budget::Auto, Device::Cpu, 4).unwrap();
        assert!(shared < alone / 3, "{shared} of {alone}");
    }

    #[test]
    fn a_gpu_allocator_is_limited_below_its_total_memory() {
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
