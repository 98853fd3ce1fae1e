//! CUDA, loaded at run time (so one build runs on laptop, CI and GPU node), and its settings.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use tch::kind::Element;
use tch::{Device, Tensor};

use crate::error::{ShimError, create_tensor, fetch, try_call};
use crate::ffi;
use crate::symbolic::SimulatedGpu;
use crate::tensor::{device_index, scalar_type};

/// Loads the NVIDIA driver and libtorch's CUDA libraries into this process. Later calls do nothing.
///
/// Call it before the first tensor on a GPU, on any thread. Without a driver it returns `DriverMissing`,
/// without libtorch's CUDA set `LibraryMissing`, both with the dynamic loader's message.
pub fn load() -> Result<(), ShimError> {
    try_call("load CUDA", |error| ffi::dt_cuda_load(error))
        .inspect(|()| LOADED.store(true, Ordering::Relaxed))
}

static LOADED: AtomicBool = AtomicBool::new(false);

/// Returns whether [`load`] has succeeded.
pub(crate) fn is_loaded() -> bool {
    LOADED.load(Ordering::Relaxed)
}

/// Returns the number of visible CUDA devices; 0 before [`load`]. It creates no context. The CUDA runtime may
/// report `DriverMissing`, `DriverTooOld` or another error.
pub fn device_count() -> Result<usize, ShimError> {
    let count = fetch("count CUDA devices", |out, error| ffi::dt_cuda_device_count(out, error))?;
    Ok(count as usize)
}

/// Makes GPU `index` the current device of the calling thread. After [`load`], every thread that uses GPU
/// tensors must call it first: a thread starts on GPU 0, and many CUDA calls create a context of some hundred
/// MiB on the current GPU. Threads of backward do it themselves.
pub fn set_device(index: usize) -> Result<(), ShimError> {
    let op = "set the current GPU";
    let index = device_index(op, Device::Cuda(index))?;
    try_call(op, |error| ffi::dt_cuda_set_device(index, error))
}

/// Sets whether later float32 products and convolutions on GPUs use TF32. It has 10 bits of mantissa instead
/// of 23 and is faster on GPUs that have it; other GPUs ignore it.
pub fn set_tf32(on: bool) -> Result<(), ShimError> {
    try_call("set TF32", |error| ffi::dt_cuda_set_tf32(on, error))
}

/// Returns whether matrix products, and whether convolutions, may use TF32.
pub fn tf32() -> Result<(bool, bool), ShimError> {
    let [products, convolutions] =
        fetch("read the TF32 setting", |out, error| ffi::dt_cuda_tf32(out, error))?;
    Ok((products, convolutions))
}

/// Returns whether cuDNN benchmarks the algorithms of each convolution for new shapes and keeps the fastest:
/// the process's setting of [`tch::Cuda::cudnn_set_benchmark`].
pub fn cudnn_benchmark() -> Result<bool, ShimError> {
    fetch("read cuDNN's benchmark setting", |out, error| ffi::dt_cuda_cudnn_benchmark(out, error))
}

/// Returns the folder of this process's libtorch.
pub fn library_folder() -> Result<PathBuf, ShimError> {
    let folder = fetch("find libtorch", |out, error| ffi::dt_library_folder(out, error))?;
    Ok(String::from_utf8_lossy(&folder).into_owned().into())
}

/// Copies `values` to a flat tensor in pinned host memory, from which a GPU copies without the host. libtorch
/// keeps freed memory until those copies are done.
pub fn pinned<T: Element>(values: &[T]) -> Result<Tensor, ShimError> {
    let op = "copy to pinned memory";
    let dtype = scalar_type(T::KIND)
        .ok_or_else(|| ShimError::invalid(op, format!("{:?} is not supported", T::KIND)))?;
    let (data, count) = (values.as_ptr().cast(), values.len() as i64);
    create_tensor(op, |out, error| {
        // SAFETY: `values` has `count` elements of that dtype, which are only read during the call.
        unsafe { ffi::dt_tensor_pinned(data, count, dtype, out, error) }
    })
}

/// Returns the total bytes of GPU number `index` from the driver. Can be called between [`load`] and the
/// first use of CUDA, for settings that must be made before that; before [`load`] it returns `DriverMissing`.
pub fn total_memory(index: usize) -> Result<u64, ShimError> {
    let op = "read a GPU's memory size";
    let index = device_index(op, Device::Cuda(index))?;
    fetch(op, |out, error| ffi::dt_cuda_total_memory(index, out, error))
}

/// Returns whether libtorch prefers cuDNN's half-precision attention to its own on GPU number `index`.
pub fn prefers_cudnn_attention(index: usize) -> Result<bool, ShimError> {
    let op = "read a GPU's compute capability";
    let index = device_index(op, Device::Cuda(index))?;
    fetch(op, |out, error| ffi::dt_cuda_prefers_cudnn_attention(index, out, error))
}

/// Returns GPU number `index` as symbolic tensors simulate it.
pub fn simulated(index: usize) -> Result<SimulatedGpu, ShimError> {
    let op = "read a GPU's properties";
    let number = device_index(op, Device::Cuda(index))?;
    let [multiprocessors, threads_per_multiprocessor, major] =
        fetch(op, |out, error| ffi::dt_cuda_properties(number, out, error))?;
    Ok(SimulatedGpu {
        cudnn_attention_width: match prefers_cudnn_attention(index)? {
            true => SimulatedGpu::cudnn_attention_width_of(major),
            false => 0,
        },
        multiprocessors,
        threads_per_multiprocessor,
        has_bf16_attention: major >= 8,
    })
}

/// Returns the bytes of libtorch's workspace for cuBLAS on the current GPU, for each thread that multiplies.
pub fn blas_workspace() -> Result<u64, ShimError> {
    fetch("read the size of cuBLAS's workspace", |out, error| ffi::dt_cuda_blas_workspace(out, error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn without_cuda_pinned_memory_is_an_error() {
        if load().is_err() {
            assert!(pinned(&[1.0f32]).is_err());
        }
    }

    #[test]
    fn without_cuda_settings_of_a_gpu_are_errors() {
        // If there is a driver, another test of this process may have loaded CUDA.
        if device_count().is_ok_and(|count| count == 0) {
            assert!(set_device(0).is_err());
        }
        assert!(set_device(usize::MAX).is_err());
        assert_eq!(total_memory(usize::MAX).unwrap_err().kind, ErrorKind::InvalidArgument);
        if load().is_err() {
            assert_eq!(total_memory(0).unwrap_err().kind, ErrorKind::DriverMissing);
            assert_eq!(prefers_cudnn_attention(0).unwrap_err().kind, ErrorKind::DriverMissing);
            assert_eq!(simulated(0).unwrap_err().kind, ErrorKind::DriverMissing);
            assert_eq!(blas_workspace().unwrap_err().kind, ErrorKind::LibraryMissing);
        }
    }
}
