//! The memory of tensors: what is allocated, a budget for the host, and the accelerator's caching allocator.
//!
//! On the host [`account`] puts an allocator in front of libtorch's own that keeps account of every tensor and, beyond
//! [`set_budget`], refuses with the error of a GPU that is full. A process on a CPU then behaves like one on a small GPU.

use tch::Device;

use crate::error::{ShimError, c_string, checked};
use crate::ffi;
use crate::rng::device_index;

/// Bytes of tensors on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// In use by tensors.
    pub allocated: u64,
    /// Held by the allocator, in use or not; on the host as `allocated`.
    pub reserved: u64,
    /// The highest `allocated` since the start or the last [`reset_peak`].
    pub peak: u64,
}

/// Begins to keep account of tensors on the host. Called once, before the first tensor: older ones are not in the books.
/// Later calls do nothing.
///
/// # Errors
/// None known.
pub fn account() -> Result<(), ShimError> {
    checked("keep account of memory", |error| {
        // SAFETY: sets the process's allocator, which lives for ever; blocks of the old one are freed by the old one.
        unsafe { ffi::dt_memory_account(error) }
    })
}

/// The memory of tensors on `device`; on the host zero before [`account`].
///
/// # Errors
/// `InvalidArgument` for devices other than CPU and CUDA; what CUDA reports.
pub fn usage(device: Device) -> Result<Usage, ShimError> {
    read(device_index("read memory figures", device)?)
}

/// Stands for the books of symbolic tensors at the boundary.
pub(crate) const SYMBOLIC: i32 = -2;

pub(crate) fn read(device: i32) -> Result<Usage, ShimError> {
    let mut out = ffi::DtUsage {
        allocated: 0,
        reserved: 0,
        peak: 0,
    };
    checked("read memory figures", |error| {
        // SAFETY: out is a valid place.
        unsafe { ffi::dt_memory_usage(device, &mut out, error) }
    })?;
    let bytes = |figure: i64| u64::try_from(figure).unwrap_or(0);
    Ok(Usage {
        allocated: bytes(out.allocated),
        reserved: bytes(out.reserved),
        peak: bytes(out.peak),
    })
}

/// The peak counts from what is allocated now.
///
/// # Errors
/// As [`usage`].
pub fn reset_peak(device: Device) -> Result<(), ShimError> {
    reset(device_index("reset the peak of memory", device)?)
}

pub(crate) fn reset(device: i32) -> Result<(), ShimError> {
    checked("reset the peak of memory", |error| {
        // SAFETY: no pointers beside the error's.
        unsafe { ffi::dt_memory_reset_peak(device, error) }
    })
}

/// Gives memory that no tensor uses back to the device, or on the host to the system.
///
/// # Errors
/// As [`usage`].
pub fn empty_cache(device: Device) -> Result<(), ShimError> {
    let op = "empty the cache";
    let index = device_index(op, device)?;
    checked(op, |error| {
        // SAFETY: no pointers beside the error's; both allocators may be asked from any thread.
        unsafe { ffi::dt_memory_empty_cache(index, error) }
    })
}

/// What is free on a GPU, and all that it has, in bytes, whoever uses it.
///
/// # Errors
/// As [`usage`]; `Other` for the host.
pub fn device_memory(device: Device) -> Result<(u64, u64), ShimError> {
    let op = "ask for the device's memory";
    let index = device_index(op, device)?;
    let (mut free, mut total) = (0, 0);
    checked(op, |error| {
        // SAFETY: both places are valid.
        unsafe { ffi::dt_memory_info(index, &mut free, &mut total, error) }
    })?;
    Ok((free, total))
}

/// Settings of the caching allocator of GPUs in the form of PYTORCH_ALLOC_CONF, such as `expandable_segments:True`. Called
/// after [`crate::cuda::load`] and before the first tensor on a GPU.
///
/// # Errors
/// Settings that libtorch does not know.
pub fn configure(settings: &str) -> Result<(), ShimError> {
    let op = "set the allocator's settings";
    let settings = c_string(op, settings)?;
    checked(op, |error| {
        // SAFETY: the text is NUL-terminated and read during the call.
        unsafe { ffi::dt_memory_configure(settings.as_ptr(), error) }
    })
}

/// The most that tensors on the host may take from now on; `None`: as much as there is. It holds for what [`account`] keeps
/// account of. An allocation beyond it fails with an error of the kind `OutOfMemory`.
pub fn set_budget(bytes: Option<u64>) {
    let bytes = bytes.map_or(0, |bytes| i64::try_from(bytes.max(1)).unwrap_or(i64::MAX));
    // SAFETY: sets an atomic integer.
    unsafe { ffi::dt_memory_set_budget(bytes) }
}

/// Memory of `bytes` that tensors use and the allocator has not given. It is in the books until it is dropped.
#[derive(Debug)]
pub(crate) struct Charge(i64);

impl Charge {
    /// # Errors
    /// `OutOfMemory` beyond the budget.
    pub(crate) fn new(bytes: usize) -> Result<Self, ShimError> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        checked("take memory", |error| {
            // SAFETY: no pointers beside the error's.
            unsafe { ffi::dt_memory_charge(bytes, error) }
        })?;
        Ok(Self(bytes))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Giving back cannot fail.
        let _ = checked("give memory back", |error| {
            // SAFETY: no pointers beside the error's.
            unsafe { ffi::dt_memory_charge(-self.0, error) }
        });
    }
}

/// For tests: the `allocation`-th allocation on the host from now on, counted from 1 over all threads, is refused as if
/// memory had run out, once. 0 takes it back.
pub fn refuse_next(allocation: u64) {
    // SAFETY: sets an atomic integer.
    unsafe { ffi::dt_memory_refuse(i64::try_from(allocation).unwrap_or(i64::MAX)) }
}

/// Allocations to come until one is refused; 0 where none will be.
pub fn refusal_in() -> u64 {
    // SAFETY: reads an atomic integer.
    u64::try_from(unsafe { ffi::dt_memory_refusal() }).unwrap_or(0)
}
