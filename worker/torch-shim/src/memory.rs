//! The memory of tensors: memory stats, a budget for the host, and the accelerator's caching allocator.
//!
//! On the host, [`enable_stats`] installs an allocator in front of libtorch's. It counts every tensor, and
//! beyond [`set_budget`] fails with the error of a full GPU, so a CPU process behaves like one on a small GPU.

use tch::Device;

use crate::error::{ShimError, fetch, try_call};
use crate::ffi;
pub use crate::ffi::Usage;
use crate::tensor::device_index;

/// Starts counting host tensors. Call it before the first tensor; later calls do nothing.
pub fn enable_stats() -> Result<(), ShimError> {
    try_call("enable memory stats", |error| ffi::dt_memory_enable_stats(error))
}

/// Returns the memory of tensors on `device`; on the host it is zero before [`enable_stats`].
pub fn usage(device: Device) -> Result<Usage, ShimError> {
    read_usage(device_index("read memory stats", device)?)
}

/// The number of symbolic tensors' memory at the boundary.
pub(crate) const SYMBOLIC: i32 = -2;

pub(crate) fn read_usage(device: i32) -> Result<Usage, ShimError> {
    fetch("read memory stats", |out, error| ffi::dt_memory_usage(device, out, error))
}

/// Resets the peak to the bytes that are allocated now.
pub fn reset_peak(device: Device) -> Result<(), ShimError> {
    reset_peak_of(device_index("reset the memory peak", device)?)
}

pub(crate) fn reset_peak_of(device: i32) -> Result<(), ShimError> {
    try_call("reset the memory peak", |error| ffi::dt_memory_reset_peak(device, error))
}

/// Returns unused memory to the device, or on the host to the system.
pub fn empty_cache(device: Device) -> Result<(), ShimError> {
    let op = "empty the cache";
    let device = device_index(op, device)?;
    try_call(op, |error| ffi::dt_memory_empty_cache(device, error))
}

/// Returns the free and the total memory of a GPU in bytes, including other processes.
pub fn device_memory(device: Device) -> Result<(u64, u64), ShimError> {
    let op = "read the device's memory";
    let device = device_index(op, device)?;
    let [free, total] = fetch(op, |out, error| ffi::dt_memory_info(device, out, error))?;
    Ok((free, total))
}

/// Configures the caching allocator of GPUs in the format of PYTORCH_ALLOC_CONF, such as
/// `expandable_segments:True`. Call it after [`crate::cuda::load`] and before the first GPU tensor.
pub fn configure(settings: &str) -> Result<(), ShimError> {
    try_call("set the allocator's options", |error| ffi::dt_memory_configure(settings.into(), error))
}

/// Sets the limit of host tensors that [`enable_stats`] counts; `None` is unlimited. An allocation beyond it
/// fails with an error of kind `OutOfMemory`.
pub fn set_budget(bytes: Option<u64>) {
    let bytes = bytes.map_or(0, |bytes| i64::try_from(bytes.max(1)).unwrap_or(i64::MAX));
    ffi::dt_memory_set_budget(bytes);
}

/// Tensor memory of `bytes` that the allocator did not allocate. It is counted until dropped.
#[derive(Debug)]
pub(crate) struct CountedMemory(i64);

impl CountedMemory {
    /// Counts the bytes. Returns `OutOfMemory` beyond the budget.
    pub(crate) fn new(bytes: usize) -> Result<Self, ShimError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        try_call("count shared memory", |error| ffi::dt_memory_count(bytes, error))?;
        Ok(Self(bytes))
    }
}

impl Drop for CountedMemory {
    fn drop(&mut self) {
        // Uncounting cannot fail.
        let _ = try_call("uncount shared memory", |error| ffi::dt_memory_count(-self.0, error));
    }
}

/// For tests: makes the `allocation`-th host allocation from now on, counted from 1 over all threads, fail
/// once as out of memory. 0 cancels it.
pub fn fail_allocation(allocation: u64) {
    ffi::dt_memory_fail_allocation(i64::try_from(allocation).unwrap_or(i64::MAX));
}

/// Returns the number of allocations until one fails on purpose, or 0.
pub fn allocations_until_failure() -> u64 {
    u64::try_from(ffi::dt_memory_allocations_until_failure()).unwrap_or(0)
}
