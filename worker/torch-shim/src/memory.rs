//! The memory of tensors: what is allocated, a budget for the host, and the accelerator's caching allocator.
//!
//! On the host [`account`] puts an allocator in front of libtorch's own that keeps account of every tensor and, beyond
//! [`set_budget`], refuses with the error of a GPU that is full. A process on a CPU then behaves like one on a small GPU.

use tch::Device;

use crate::error::{ShimError, checked, fetched};
use crate::ffi;
pub use crate::ffi::Usage;
use crate::tensor::device_index;

/// Begins to keep account of tensors on the host. Called before the first tensor: older ones are not counted. Later calls do nothing.
pub fn account() -> Result<(), ShimError> {
    checked("keep account of memory", |error| ffi::dt_memory_account(error))
}

/// The memory of tensors on `device`; on the host zero before [`account`].
pub fn usage(device: Device) -> Result<Usage, ShimError> {
    read(device_index("read memory figures", device)?)
}

/// Stands for the memory of symbolic tensors at the boundary.
pub(crate) const SYMBOLIC: i32 = -2;

pub(crate) fn read(device: i32) -> Result<Usage, ShimError> {
    fetched("read memory figures", |out, error| ffi::dt_memory_usage(device, out, error))
}

/// The peak counts from what is allocated now.
pub fn reset_peak(device: Device) -> Result<(), ShimError> {
    reset(device_index("reset the peak of memory", device)?)
}

pub(crate) fn reset(device: i32) -> Result<(), ShimError> {
    checked("reset the peak of memory", |error| ffi::dt_memory_reset_peak(device, error))
}

/// Gives memory that no tensor uses back to the device, or on the host to the system.
pub fn empty_cache(device: Device) -> Result<(), ShimError> {
    let op = "empty the cache";
    let device = device_index(op, device)?;
    checked(op, |error| ffi::dt_memory_empty_cache(device, error))
}

/// The free and the whole memory of a GPU in bytes, whoever uses it.
pub fn device_memory(device: Device) -> Result<(u64, u64), ShimError> {
    let op = "ask for the device's memory";
    let device = device_index(op, device)?;
    let [free, total] = fetched(op, |out, error| ffi::dt_memory_info(device, out, error))?;
    Ok((free, total))
}

/// Settings of the caching allocator of GPUs in the form of PYTORCH_ALLOC_CONF, such as `expandable_segments:True`. Called
/// after [`crate::cuda::load`] and before the first tensor on a GPU.
pub fn configure(settings: &str) -> Result<(), ShimError> {
    checked("set the allocator's settings", |error| ffi::dt_memory_configure(settings.into(), error))
}

/// The most that tensors on the host may take from now on; `None`: as much as there is. It holds for what [`account`] counts. An
/// allocation beyond it fails with an error of the kind `OutOfMemory`.
pub fn set_budget(bytes: Option<u64>) {
    let bytes = bytes.map_or(0, |bytes| i64::try_from(bytes.max(1)).unwrap_or(i64::MAX));
    ffi::dt_memory_set_budget(bytes);
}

/// Memory of `bytes` that tensors use and the allocator has not given. It is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Charge(i64);

impl Charge {
    /// `OutOfMemory` beyond the budget.
    pub(crate) fn new(bytes: usize) -> Result<Self, ShimError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        checked("take memory", |error| ffi::dt_memory_charge(bytes, error))?;
        Ok(Self(bytes))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Giving back cannot fail.
        let _ = checked("give memory back", |error| ffi::dt_memory_charge(-self.0, error));
    }
}

/// For tests: the `allocation`-th allocation on the host from now on, counted from 1 over all threads, is refused as if
/// memory had run out, once. 0 takes it back.
pub fn refuse_next(allocation: u64) {
    ffi::dt_memory_refuse(i64::try_from(allocation).unwrap_or(i64::MAX));
}

/// Allocations to come until one is refused; 0 where none will be.
pub fn refusal_in() -> u64 {
    u64::try_from(ffi::dt_memory_refusal()).unwrap_or(0)
}
