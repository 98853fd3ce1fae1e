//! Variables by which the NVIDIA driver is told what a program may see.

/// Which GPUs a CUDA program sees, and in which order; [`crate::gpu::Visible`] reads it.
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// How CUDA counts GPUs: `PCI_BUS_ID` as NVML does, `FASTEST_FIRST` or unset the fastest first.
pub const CUDA_DEVICE_ORDER: &str = "CUDA_DEVICE_ORDER";
/// The version of CUDA for which a libtorch of the user's own is built, such as `12.6`; the launcher checks the driver against
/// it. Unset: that of libtorch's CUDA set.
pub const DTRAIN_CUDA: &str = "DTRAIN_CUDA";
