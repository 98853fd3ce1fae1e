//! CUDA loaded at run time: no binary links it, so one build serves laptop, CI and GPU node.

use std::ffi::CStr;
use std::path::PathBuf;

use crate::error::{ShimError, checked};
use crate::ffi;

/// Loads the NVIDIA driver and libtorch's CUDA libraries into this process, once; later calls do nothing.
///
/// Call it before the first tensor on a GPU is made, on a thread of your choice.
///
/// # Errors
/// `LibraryMissing` with the loader's own words where there is no driver, or where libtorch's CUDA set was not installed.
pub fn load() -> Result<(), ShimError> {
    checked("load CUDA", |error| {
        // SAFETY: error is a valid place; the C++ side serialises callers.
        unsafe { ffi::dt_cuda_load(error) }
    })
}

/// How many CUDA devices this process sees; 0 before [`load`].
///
/// # Errors
/// What the CUDA runtime reports, for example a driver that is too old.
pub fn device_count() -> Result<usize, ShimError> {
    let mut out = 0;
    checked("count CUDA devices", |error| {
        // SAFETY: out is a valid place.
        unsafe { ffi::dt_cuda_device_count(&mut out, error) }
    })?;
    Ok(usize::try_from(out).unwrap_or(0))
}

/// The folder of the libtorch that this process runs on.
///
/// # Errors
/// `LibraryMissing` where the loader does not tell.
pub fn library_folder() -> Result<PathBuf, ShimError> {
    let mut out = std::ptr::null_mut();
    checked("find libtorch", |error| {
        // SAFETY: out is a valid place.
        unsafe { ffi::dt_library_folder(&mut out, error) }
    })?;
    // SAFETY: on success out is a malloc'ed, NUL-terminated string that is ours to free, once.
    Ok(unsafe {
        let folder = PathBuf::from(CStr::from_ptr(out).to_string_lossy().into_owned());
        ffi::dt_string_free(out);
        folder
    })
}
