//! CUDA loaded at run time: no binary links it, so one build serves laptop, CI and GPU node. And how its kernels compute.

use std::path::PathBuf;

use tch::kind::Element;
use tch::{Device, Tensor};

use crate::error::{ShimError, checked, fetched, tensor};
use crate::ffi;
use crate::tensor::{device_index, scalar_type};

/// Loads the NVIDIA driver and libtorch's CUDA libraries into this process, once; later calls do nothing.
///
/// Call it before the first tensor on a GPU is made, on a thread of your choice. Without a driver it is
/// `DriverMissing`, without libtorch's CUDA set `LibraryMissing`, with the loader's own words.
pub fn load() -> Result<(), ShimError> {
    checked("load CUDA", |error| ffi::dt_cuda_load(error))
}

/// How many CUDA devices this process sees; 0 before [`load`]. No context is made on any of them. The CUDA
/// runtime may report `DriverMissing`, `DriverTooOld`, or whatever keeps it from starting.
pub fn device_count() -> Result<usize, ShimError> {
    let count = fetched("count CUDA devices", |out, error| ffi::dt_cuda_device_count(out, error))?;
    Ok(count as usize)
}

/// Makes GPU `index` the one on which the calling thread does what names no device. Every thread that uses tensors on a GPU calls
/// it before anything else, once [`load`] has succeeded: a thread begins on GPU 0, and much of CUDA makes a context, of some
/// hundred MiB, on the GPU that a thread is on. Threads of backward do it themselves.
pub fn set_device(index: usize) -> Result<(), ShimError> {
    let op = "make a GPU the current one";
    let index = device_index(op, Device::Cuda(index))?;
    checked(op, |error| ffi::dt_cuda_set_device(index, error))
}

/// Whether matrix products and convolutions of float32 tensors on GPUs compute in TF32, which has 10 bits of mantissa instead of 23
/// and is faster where the GPU has it; others ignore it. It holds for the process, and for what is computed from
/// then on.
pub fn set_tf32(on: bool) -> Result<(), ShimError> {
    checked("set TF32", |error| ffi::dt_cuda_set_tf32(on, error))
}

/// Whether matrix products, and whether convolutions, may compute in TF32.
pub fn tf32() -> Result<(bool, bool), ShimError> {
    let [products, convolutions] = fetched("read TF32", |out, error| ffi::dt_cuda_tf32(out, error))?;
    Ok((products, convolutions))
}

/// Whether cuDNN tries several algorithms for each convolution when it first meets its shapes, and keeps the
/// fastest: what [`tch::Cuda::cudnn_set_benchmark`] has set for the process.
pub fn cudnn_benchmark() -> Result<bool, ShimError> {
    fetched("read cuDNN's benchmark", |out, error| ffi::dt_cuda_cudnn_benchmark(out, error))
}

/// The folder of the libtorch that this process runs on.
pub fn library_folder() -> Result<PathBuf, ShimError> {
    let folder = fetched("find libtorch", |out, error| ffi::dt_library_folder(out, error))?;
    Ok(String::from_utf8_lossy(&folder).into_owned().into())
}

/// A flat tensor of `values` in pinned memory of the host, from which a GPU copies while the host goes on. libtorch holds on to a
/// block of it that was freed until the copies out of it are done.
pub fn pinned<T: Element>(values: &[T]) -> Result<Tensor, ShimError> {
    let op = "copy to pinned memory";
    let dtype = scalar_type(T::KIND)
        .ok_or_else(|| ShimError::invalid(op, format!("{:?} is not among the dtypes of batches", T::KIND)))?;
    let (data, count) = (values.as_ptr().cast(), values.len() as i64);
    tensor(op, |out, error| {
        // SAFETY: `values` holds as many elements of that dtype, and is only read, during the call.
        unsafe { ffi::dt_tensor_pinned(data, count, dtype, out, error) }
    })
}

/// All bytes of GPU number `index`, as the driver counts them. Can be asked for between [`load`] and the first use of CUDA, for
/// settings that have to be made before it; before [`load`] it is the error `DriverMissing`.
pub fn total_memory(index: usize) -> Result<u64, ShimError> {
    let op = "ask for a GPU's memory";
    let index = device_index(op, Device::Cuda(index))?;
    fetched(op, |out, error| ffi::dt_cuda_total_memory(index, out, error))
}

/// Whether libtorch computes attention in half precision by cuDNN on GPU number `index` where it can, before its own flash kernel.
pub fn prefers_cudnn_attention(index: usize) -> Result<bool, ShimError> {
    let op = "ask for a GPU's compute capability";
    let index = device_index(op, Device::Cuda(index))?;
    fetched(op, |out, error| ffi::dt_cuda_prefers_cudnn_attention(index, out, error))
}

/// The bytes that libtorch gives cuBLAS on the current GPU to work in, once for every thread that multiplies.
pub fn blas_workspace() -> Result<u64, ShimError> {
    fetched("ask for cuBLAS's workspace", |out, error| ffi::dt_cuda_blas_workspace(out, error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn without_cuda_there_is_no_pinned_memory() {
        if load().is_err() {
            assert!(pinned(&[1.0f32]).is_err());
        }
    }

    #[test]
    fn without_cuda_no_gpu_is_there_to_be_the_current_one() {
        // Another test of this process may have loaded CUDA where there is a driver.
        if device_count().is_ok_and(|count| count == 0) {
            assert!(set_device(0).is_err());
        }
        assert!(set_device(usize::MAX).is_err());
        assert_eq!(total_memory(usize::MAX).unwrap_err().kind, ErrorKind::InvalidArgument);
        if load().is_err() {
            assert_eq!(total_memory(0).unwrap_err().kind, ErrorKind::DriverMissing);
            assert_eq!(prefers_cudnn_attention(0).unwrap_err().kind, ErrorKind::DriverMissing);
            assert_eq!(blas_workspace().unwrap_err().kind, ErrorKind::LibraryMissing);
        }
    }
}
