//! The state of libtorch's default generators, to be stashed and put back exactly.

use tch::{Device, Tensor};

use crate::error::{ErrorKind, ShimError, checked};
use crate::ffi;

/// The device's generator state, an opaque `uint8` vector on the CPU.
///
/// # Errors
/// `InvalidArgument` for devices other than CPU and CUDA.
pub fn state(device: Device) -> Result<Tensor, ShimError> {
    let op = "read the generator state";
    let device = device_index(op, device)?;
    let mut out = std::ptr::null_mut();
    checked(op, |error| {
        // SAFETY: out is a valid place.
        unsafe { ffi::dt_rng_get_state(device, &mut out, error) }
    })?;
    // SAFETY: on success out is a new at::Tensor, which is what tch's C_tensor stands for; tch frees it.
    Ok(unsafe { Tensor::from_ptr(out.cast()) })
}

/// Puts a state from [`state`] back: the random numbers that followed it follow again.
///
/// # Errors
/// `InvalidArgument` or `Other` for a tensor that is no state of this device's generator.
pub fn set_state(device: Device, state: &Tensor) -> Result<(), ShimError> {
    let op = "set the generator state";
    let device = device_index(op, device)?;
    checked(op, |error| {
        // SAFETY: the tensor is live during the call, and its content is checked and copied by libtorch.
        unsafe { ffi::dt_rng_set_state(device, state.as_ptr().cast(), error) }
    })
}

/// -1 stands for the CPU at the boundary.
pub(crate) fn device_index(op: &'static str, device: Device) -> Result<i32, ShimError> {
    match device {
        Device::Cpu => Ok(-1),
        // libtorch counts devices in 8 bits.
        Device::Cuda(index) => i8::try_from(index)
            .map(i32::from)
            .map_err(|_| ShimError::new(op, ErrorKind::InvalidArgument, format!("there is no GPU {index}"))),
        other => Err(ShimError::new(
            op,
            ErrorKind::InvalidArgument,
            format!("{other:?} is not supported"),
        )),
    }
}
