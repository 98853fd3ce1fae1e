//! Regions of mixed precision: inside one, libtorch runs matrix products and convolutions in a shorter dtype.

use std::marker::PhantomData;

use tch::{Device, Kind};

use crate::error::{ErrorKind, ShimError, checked};
use crate::ffi;
use crate::rng::device_index;

/// A region of autocast on the calling thread; dropping it restores what was there before, so regions nest.
#[derive(Debug)]
pub struct Autocast {
    device: i32,
    was_enabled: bool,
    was_dtype: i32,
    /// Autocast is a property of the thread that set it.
    _not_send: PhantomData<*const ()>,
}

impl Autocast {
    /// Enters a region in which operations on `device` run in `dtype` (`Kind::BFloat16` or `Kind::Half`).
    ///
    /// # Errors
    /// `InvalidArgument` for other dtypes and devices.
    pub fn enter(device: Device, dtype: Kind) -> Result<Self, ShimError> {
        Self::switch(device, true, dtype)
    }

    /// Enters a region without autocast inside one that has it.
    ///
    /// # Errors
    /// `InvalidArgument` for devices other than CPU and CUDA.
    pub fn disabled(device: Device) -> Result<Self, ShimError> {
        Self::switch(device, false, Kind::BFloat16)
    }

    fn switch(device: Device, enabled: bool, dtype: Kind) -> Result<Self, ShimError> {
        let op = "enter autocast";
        let index = device_index(op, device)?;
        let dtype = match dtype {
            Kind::Half => 5,
            Kind::BFloat16 => 15,
            other => {
                let message = format!("autocast runs in BFloat16 or Half, not {other:?}");
                return Err(ShimError::new(op, ErrorKind::InvalidArgument, message));
            }
        };
        let (mut was_enabled, mut was_dtype) = (false, 0);
        checked(op, |error| {
            // SAFETY: both places are valid.
            unsafe { ffi::dt_autocast_get(index, &mut was_enabled, &mut was_dtype, error) }
        })?;
        checked(op, |error| {
            // SAFETY: dtype is a valid at::ScalarType.
            unsafe { ffi::dt_autocast_set(index, enabled, dtype, error) }
        })?;
        checked(op, |error| {
            // SAFETY: no pointers beside the error's.
            unsafe { ffi::dt_autocast_enter(error) }
        })?;
        Ok(Self {
            device: index,
            was_enabled,
            was_dtype,
            _not_send: PhantomData,
        })
    }

    /// Whether autocast is on for `device` on this thread.
    ///
    /// # Errors
    /// `InvalidArgument` for devices other than CPU and CUDA.
    pub fn is_enabled(device: Device) -> Result<bool, ShimError> {
        let op = "read autocast";
        let index = device_index(op, device)?;
        let (mut enabled, mut dtype) = (false, 0);
        checked(op, |error| {
            // SAFETY: both places are valid.
            unsafe { ffi::dt_autocast_get(index, &mut enabled, &mut dtype, error) }
        })?;
        Ok(enabled)
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // The calls set thread-local integers and cannot fail for values that were read back from libtorch.
        let _ = checked("leave autocast", |error| {
            // SAFETY: the values are those that dt_autocast_get gave.
            unsafe { ffi::dt_autocast_set(self.device, self.was_enabled, self.was_dtype, error) }
        });
        let _ = checked("leave autocast", |error| {
            // SAFETY: no pointers beside the error's.
            unsafe { ffi::dt_autocast_leave(error) }
        });
    }
}
