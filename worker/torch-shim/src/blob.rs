//! Tensors over memory that libtorch has not allocated.

use std::ffi::c_void;

use dtrain_shared_memory::Region;
use tch::{Kind, Tensor};

use crate::error::{ShimError, create_tensor};
use crate::ffi;
use crate::memory::CountedMemory;
use crate::tensor::scalar_type;

/// Creates a flat CPU tensor of `count` elements over the first bytes of `region`, with their contents. The
/// region stays mapped until the last tensor over it, including views, is gone. Returns `InvalidArgument` if
/// the elements do not fit, or for dtypes other than Float, Double, Half and BFloat16.
pub fn from_region(region: Region, count: usize, kind: Kind) -> Result<Tensor, ShimError> {
    let op = "create a tensor in shared memory";
    let dtype = match kind {
        Kind::Half | Kind::Float | Kind::Double | Kind::BFloat16 => scalar_type(kind),
        _ => None,
    };
    let dtype = dtype.ok_or_else(|| ShimError::invalid(op, format!("{kind:?} is not supported")))?;
    let (data, region_bytes) = (region.as_ptr(), region.bytes());
    let bytes = count.checked_mul(kind.elt_size_in_bytes());
    let bytes = bytes.filter(|bytes| *bytes <= region_bytes).ok_or_else(|| {
        let message =
            format!("{count} elements of {kind:?} do not fit into a region of {region_bytes} bytes");
        ShimError::invalid(op, message)
    })?;
    let owner = Box::into_raw(Box::new((region, CountedMemory::new(bytes)?))).cast();
    create_tensor(op, |out, error| {
        // SAFETY: data is page-aligned and valid for `count` elements while the owner lives. The owner is a
        // leaked Box, which the call passes to release_region exactly once, also on failure.
        unsafe { ffi::dt_tensor_from_memory(data, count as i64, dtype, owner, release_region, out, error) }
    })
}

/// Frees the region that [`from_region`] leaked. libtorch calls it on the thread that drops the last tensor.
extern "C" fn release_region(owner: *mut c_void) {
    // SAFETY: owner is the Box of `from_region`, passed back once.
    drop(unsafe { Box::from_raw(owner.cast::<(Region, CountedMemory)>()) });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ErrorKind;
    use dtrain_shared_memory::Segment;
    use std::sync::Arc;

    fn segment(bytes: usize) -> Arc<Segment> {
        let (segment, _) = Segment::create(2, bytes).unwrap();
        segment.reserve(0).unwrap();
        segment.reserve(1).unwrap();
        Arc::new(segment)
    }

    #[test]
    fn a_tensor_uses_its_region_and_keeps_it_mapped() {
        let segment = segment(4000);
        for kind in [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16] {
            let region = Region::new(&segment, 1).unwrap();
            let start = region.as_ptr();
            let mut tensor = from_region(region, 100, kind).unwrap();
            assert_eq!((tensor.kind(), tensor.size()), (kind, vec![100]));
            assert_eq!(tensor.data_ptr().cast::<u8>(), start);
            let _ = tensor.fill_(3);
            let view = tensor.narrow(0, 90, 10).view([2, 5]);
            drop(tensor);
            assert_eq!(Arc::strong_count(&segment), 2, "the view keeps the region");
            assert_eq!(view.sum(Kind::Double).double_value(&[]), 30.0);
            drop(view);
            assert_eq!(Arc::strong_count(&segment), 1);
        }
    }

    #[test]
    fn elements_that_do_not_fit_are_errors_and_nothing_leaks() {
        let segment = segment(4000);
        for (count, kind) in
            [(1001, Kind::Float), (501, Kind::Double), (usize::MAX, Kind::Half), (1, Kind::Int64)]
        {
            let error = from_region(Region::new(&segment, 0).unwrap(), count, kind).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
        }
        assert_eq!(Arc::strong_count(&segment), 1);
    }

    #[test]
    fn autograd_accumulates_into_a_tensor_over_a_region() {
        let segment = segment(4000);
        let flat = from_region(Region::new(&segment, 0).unwrap(), 6, Kind::Float).unwrap();
        let parameter = Tensor::ones([2, 3], (Kind::Float, tch::Device::Cpu)).set_requires_grad(true);
        crate::tensor::set_grad(&parameter, &flat.view([2, 3])).unwrap();
        for _ in 0..2 {
            (&parameter * 2.5).sum(Kind::Float).backward();
        }
        assert_eq!(Vec::<f32>::try_from(&flat).unwrap(), [5.0; 6]);
    }
}
