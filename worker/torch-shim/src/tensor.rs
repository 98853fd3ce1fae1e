//! A parameter's data and gradient as views of other tensors, and writing numbers to an existing tensor.

use tch::{Device, Kind, Tensor};

use crate::error::{ShimError, fetch, try_call};
use crate::ffi;

/// Makes `target` use `source`'s storage, shape and strides. `target` stays the same leaf of the graph, so
/// all layers that hold it use the new data.
pub fn set_data(target: &Tensor, source: &Tensor) -> Result<(), ShimError> {
    Ok(target.shallow_clone().f_set_data(source)?)
}

/// Makes `grad`, of equal shape, dtype and device, the gradient of the leaf `target`. Backward adds in place.
pub fn set_grad(target: &Tensor, grad: &Tensor) -> Result<(), ShimError> {
    try_call("set a parameter's gradient", |error| {
        ffi::dt_tensor_set_grad(target.into(), Some(grad.into()), error)
    })
}

/// Returns whether both tensors begin at the same place of one storage. Symbolic tensors have storages too.
pub fn is_same_memory(a: &Tensor, b: &Tensor) -> Result<bool, ShimError> {
    fetch("compare the memory of tensors", |out, error| {
        ffi::dt_is_same_memory(a.into(), b.into(), out, error)
    })
}

/// Drops the gradient of `target`.
pub fn clear_grad(target: &Tensor) -> Result<(), ShimError> {
    try_call("drop a parameter's gradient", |error| ffi::dt_tensor_set_grad(target.into(), None, error))
}

/// Writes `values` to `target`, a contiguous Double CPU tensor with as many elements. It allocates nothing,
/// so it cannot run out of memory. Nothing else may use the tensor meanwhile.
pub fn write(target: &Tensor, values: &[f64]) -> Result<(), ShimError> {
    let fits = target.defined()
        && target.device() == Device::Cpu
        && target.is_contiguous()
        && target.f_kind().is_ok_and(|kind| kind == Kind::Double)
        && target.numel() == values.len();
    if !fits {
        let count = values.len();
        let message = format!("{count} values need a contiguous float64 CPU tensor of {count} elements");
        return Err(ShimError::invalid("write values into a tensor", message));
    }
    // SAFETY: the tensor is contiguous and has as many float64 as the slice, on the host. The slice cannot
    // overlap it, because libtorch's memory is never borrowed as a slice.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), target.data_ptr().cast::<f64>(), values.len()) }
    Ok(())
}

/// Returns a dtype's number in c10::ScalarType, for the dtypes that cross the boundary.
pub(crate) fn scalar_type(kind: Kind) -> Option<i32> {
    match kind {
        Kind::Uint8 => Some(0),
        Kind::Int64 => Some(4),
        Kind::Half => Some(5),
        Kind::Float => Some(6),
        Kind::Double => Some(7),
        Kind::BFloat16 => Some(15),
        _ => None,
    }
}

/// Returns a device's number at the boundary: -1 is the CPU.
pub(crate) fn device_index(op: &'static str, device: Device) -> Result<i32, ShimError> {
    match device {
        Device::Cpu => Ok(-1),
        // libtorch numbers devices in 8 bits.
        Device::Cuda(index) => i8::try_from(index)
            .map(i32::from)
            .map_err(|_| ShimError::invalid(op, format!("invalid GPU number {index}"))),
        other => Err(ShimError::invalid(op, format!("{other:?} is not supported"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_are_written_in_place_and_wrong_targets_are_errors() {
        let whole = Tensor::zeros([2, 3], (Kind::Double, Device::Cpu));
        write(&whole.narrow(0, 1, 1), &[1.0, 2.5, -3.0]).unwrap();
        assert_eq!(Vec::<f64>::try_from(whole.view(-1)).unwrap(), [0.0, 0.0, 0.0, 1.0, 2.5, -3.0]);
        for other in [
            whole.shallow_clone(),
            whole.narrow(1, 0, 1),
            Tensor::zeros([3], (Kind::Float, Device::Cpu)),
            Tensor::new(),
        ] {
            assert!(write(&other, &[0.0; 3]).is_err());
        }
        assert!(write(&whole.narrow(1, 0, 1), &[0.0; 2]).is_err(), "not contiguous");
    }
}
