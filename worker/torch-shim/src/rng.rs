//! The state of libtorch's default random generators, to save and restore.

use tch::{Device, Tensor};

use crate::error::{ShimError, create_tensor, try_call};
use crate::ffi;
use crate::tensor::device_index;

/// Returns the device's generator state, an opaque `uint8` vector on the CPU.
pub fn state(device: Device) -> Result<Tensor, ShimError> {
    let op = "read the generator state";
    let device = device_index(op, device)?;
    create_tensor(op, |out, error| ffi::dt_rng_get_state(device, out, error))
}

/// Seeds the default generators of all devices. A device that has failed is an error.
pub fn seed(seed: u64) -> Result<(), ShimError> {
    try_call("seed the generators", |error| ffi::dt_rng_seed(seed, error))
}

/// Restores a state from [`state`]: the same random numbers follow.
pub fn set_state(device: Device, state: &Tensor) -> Result<(), ShimError> {
    let op = "set the generator state";
    let device = device_index(op, device)?;
    try_call(op, |error| ffi::dt_rng_set_state(device, state.into(), error))
}
