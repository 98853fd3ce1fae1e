//! Regions of mixed precision: inside one, libtorch runs matrix products and convolutions in a shorter dtype.

use std::marker::PhantomData;

use tch::{Device, Kind, Tensor};

use crate::error::{ShimError, checked, fetched, tensor};
use crate::ffi;
use crate::tensor::{device_index, scalar_type};

/// A leaf as products take it: where autocast would cast it to the dtype of `shadow`, which has its values, that in its place. The
/// gradient goes to the leaf, in the leaf's dtype. Where nothing is recorded it is the leaf itself, whose values may be others then.
pub fn shadowed(leaf: &Tensor, shadow: &Tensor) -> Result<Tensor, ShimError> {
    tensor("stand in for a parameter", |out, error| ffi::dt_shadowed(leaf.into(), shadow.into(), out, error))
}

/// A region of autocast on the calling thread; dropping it restores what was there before, so regions nest.
#[derive(Debug)]
pub struct Autocast {
    device: i32,
    before: ffi::DtAutocast,
    /// Autocast is a property of the thread that set it.
    _not_send: PhantomData<*const ()>,
}

impl Autocast {
    /// Enters a region in which operations on `device` run in `dtype` (`Kind::BFloat16` or `Kind::Half`).
    pub fn enter(device: Device, dtype: Kind) -> Result<Self, ShimError> {
        let op = "enter autocast";
        let device = device_index(op, device)?;
        let number = match dtype {
            Kind::Half | Kind::BFloat16 => scalar_type(dtype),
            _ => None,
        };
        let number = number.ok_or_else(|| {
            ShimError::invalid(op, format!("autocast runs in BFloat16 or Half, not {dtype:?}"))
        })?;
        let enter = |before: &mut _, error: &mut _| ffi::dt_autocast_enter(device, number, before, error);
        Ok(Self { device, before: fetched(op, enter)?, _not_send: PhantomData })
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // What was read back from libtorch cannot be refused by it.
        let _ = checked("leave autocast", |error| ffi::dt_autocast_leave(self.device, &self.before, error));
    }
}
