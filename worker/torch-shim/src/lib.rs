//! The C++ over libtorch that tch lacks, and its safe Rust face.
//!
//! Three levels: `csrc/*.cpp` catches every exception at the boundary, `ffi` declares its functions, and the modules
//! below wrap them in types that cannot be misused. This is the only crate of the workspace that holds C++.
//!
//! - [`store`]: c10d's TCPStore, by which ranks find each other
//! - [`gloo`]: c10d's Gloo process group and its asynchronous work handles
//! - [`copy`]: large copies in the memory of the host
//! - [`cuda`]: CUDA loaded at run time, never linked
//! - [`stream`]: streams and events of GPUs
//! - [`graph`]: work of a GPU that is written down once and done many times
//! - [`rng`]: the state of libtorch's generators
//! - [`autocast`]: regions of mixed precision
//! - [`grad_mode`]: whether operations are recorded, put back on the way out of a panic
//! - [`tensor`]: a parameter's data and gradient as views of other tensors
//! - [`blob`]: tensors over memory that ranks share
//! - [`fused`]: one optimizer update in one kernel, and the unscaling of gradients
//! - [`hooks`]: calls out of backward into Rust
//! - [`memory`]: what tensors take, and a budget for it
//! - [`symbolic`]: tensors without storage
//! - [`head`]: the loss of a language model without all of its logits at once
//! - [`recompute`]: pieces of a forward pass that are computed again in backward
//! - [`jit`]: TorchScript modules

pub mod autocast;
pub mod blob;
pub mod copy;
pub mod count;
pub mod cuda;
mod error;
mod ffi;
pub mod fused;
pub mod gloo;
pub mod grad_mode;
pub mod graph;
pub mod head;
pub mod hooks;
pub mod jit;
pub mod landing;
pub mod memory;
pub mod recompute;
pub mod rng;
pub mod stacks;
pub mod store;
pub mod stream;
pub mod symbolic;
pub mod tensor;

pub use error::{ErrorKind, ShimError, kind_of};

use std::ffi::CStr;

/// The version of libtorch that the shim was compiled against, for example `2.11.0`.
pub fn libtorch_version() -> &'static str {
    // SAFETY: the function returns a pointer to a string literal, which lives as long as the program.
    let text = unsafe { CStr::from_ptr(ffi::dt_libtorch_version()) };
    text.to_str().unwrap_or("unknown")
}

/// Silences libtorch's own log lines short of fatal ones: what they say of lost peers and time-outs reaches the caller as
/// a typed error, without their C++ stack frames. A `TORCH_CPP_LOG_LEVEL` that the user has set (INFO, WARNING, ERROR)
/// is followed instead.
///
/// # Errors
/// None known.
pub fn quiet_logs() -> Result<(), ShimError> {
    let level = match std::env::var("TORCH_CPP_LOG_LEVEL").as_deref() {
        Ok("INFO" | "0") => 0,
        Ok("WARNING" | "1") => 1,
        Ok("ERROR" | "2") => 2,
        _ => 3,
    };
    error::checked("set libtorch's log level", |error| {
        // SAFETY: sets an integer; called before other threads use libtorch.
        unsafe { ffi::dt_set_log_level(level, error) }
    })
}

/// Keeps freed memory of the host with the process for the next step, where the system would take it away and hand it out
/// again page by page: about a tenth of a training step's time on a CPU. Settings that the user has made by
/// `MALLOC_TRIM_THRESHOLD_` or `GLIBC_TUNABLES` stay. Called once, before large tensors are made.
///
/// # Errors
/// Where the C library refuses.
pub fn keep_freed_memory() -> Result<(), ShimError> {
    let set = |name| std::env::var_os(name).is_some();
    if set("MALLOC_TRIM_THRESHOLD_") || set("MALLOC_MMAP_THRESHOLD_") || set("GLIBC_TUNABLES") {
        return Ok(());
    }
    error::checked("set how freed memory is kept", |error| {
        // SAFETY: sets integers of the allocator; no pointers beside the error's.
        unsafe { ffi::dt_keep_freed_memory(error) }
    })
}
