//! The C++ over libtorch that tch lacks, and its safe Rust face.
//!
//! Three levels: `csrc/*.cpp` catches every exception at the boundary, `ffi` declares its functions, and the modules
//! below wrap them in types that cannot be misused. This is the only crate of the workspace that holds C++.

pub mod autocast;
pub mod blob;
mod callback;
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

/// The version of libtorch that the shim was compiled against, for example `2.11.0`.
pub fn libtorch_version() -> String {
    ffi::dt_libtorch_version().to_owned()
}

/// Silences libtorch's own log lines short of fatal ones: what they say of lost peers and time-outs reaches the caller as
/// a typed error, without their C++ stack frames. A `TORCH_CPP_LOG_LEVEL` that the user has set (INFO, WARNING, ERROR)
/// is followed instead. Called before other threads use libtorch.
pub fn quiet_logs() {
    let level = match std::env::var("TORCH_CPP_LOG_LEVEL").as_deref() {
        Ok("INFO" | "0") => 0,
        Ok("WARNING" | "1") => 1,
        Ok("ERROR" | "2") => 2,
        _ => 3,
    };
    ffi::dt_set_log_level(level);
}

/// Keeps freed memory of the host with the process for the next step, where the system would take it away and hand it out
/// again page by page: about a tenth of a training step's time on a CPU. Settings that the user has made by
/// `MALLOC_TRIM_THRESHOLD_` or `GLIBC_TUNABLES` stay. Called once, before large tensors are made.
pub fn keep_freed_memory() -> Result<(), ShimError> {
    let set = |name| std::env::var_os(name).is_some();
    if set("MALLOC_TRIM_THRESHOLD_") || set("MALLOC_MMAP_THRESHOLD_") || set("GLIBC_TUNABLES") {
        return Ok(());
    }
    // Blocks of up to 32 MiB, glibc's own limit, stay with the process, as libtorch keeps those of devices.
    let settings =
        [(libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, i32::MAX), (libc::M_TOP_PAD, 64 << 20)];
    // SAFETY: mallopt sets numbers of the allocator and touches no block.
    match settings.into_iter().all(|(setting, value)| unsafe { libc::mallopt(setting, value) } == 1) {
        true => Ok(()),
        false => Err(ShimError::new(
            "set how freed memory is kept",
            ErrorKind::Other,
            "mallopt refused the settings",
        )),
    }
}
