//! Mixed precision: regions in which libtorch runs matrix products and convolutions in half precision.

use std::marker::PhantomData;

use tch::{Device, Kind, Tensor};

use crate::error::{ShimError, create_tensor, fetch, try_call};
use crate::ffi;
use crate::tensor::{device_index, scalar_type};

/// Returns the operand of products for a leaf. If autocast would cast the leaf to the dtype of `shadow`, it
/// is `shadow`, which must have the leaf's values; the gradient goes to the leaf, in its dtype. If nothing is
/// recorded it is the leaf, whose values may then differ.
pub fn substitute_shadow(leaf: &Tensor, shadow: &Tensor) -> Result<Tensor, ShimError> {
    create_tensor("substitute a parameter's shadow", |out, error| {
        ffi::dt_substitute_shadow(leaf.into(), shadow.into(), out, error)
    })
}

/// A region of autocast on the calling thread. Dropping it restores the earlier state, so regions nest.
#[derive(Debug)]
pub struct Autocast {
    device: i32,
    before: ffi::DtAutocast,
    /// Autocast is a state of the thread.
    _not_send: PhantomData<*const ()>,
}

impl Autocast {
    /// Enters a region in which operations on `device` run in `dtype` (`Kind::BFloat16` or `Kind::Half`).
    pub fn enter(device: Device, dtype: Kind) -> Result<Self, ShimError> {
        let op = "enter autocast";
        let device = device_index(op, device)?;
        let scalar = match dtype {
            Kind::Half | Kind::BFloat16 => scalar_type(dtype),
            _ => None,
        };
        let scalar = scalar.ok_or_else(|| {
            ShimError::invalid(op, format!("autocast supports BFloat16 and Half, not {dtype:?}"))
        })?;
        Self::set(op, device, Some(scalar))
    }

    /// Enters a region without autocast on `device`.
    pub fn disable(device: Device) -> Result<Self, ShimError> {
        let op = "leave autocast out";
        Self::set(op, device_index(op, device)?, None)
    }

    fn set(op: &'static str, device: i32, scalar: Option<i32>) -> Result<Self, ShimError> {
        // A negative number is no dtype.
        let scalar = scalar.unwrap_or(-1);
        let enter = |before: &mut _, error: &mut _| ffi::dt_autocast_enter(device, scalar, before, error);
        Ok(Self { device, before: fetch(op, enter)?, _not_send: PhantomData })
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // libtorch accepts the state that it returned.
        let _ = try_call("leave autocast", |error| ffi::dt_autocast_leave(self.device, &self.before, error));
    }
}
