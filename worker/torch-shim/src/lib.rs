//! The C++ over libtorch that tch lacks, with a safe Rust interface.
//!
//! Three levels: `csrc/*.cpp` catches every exception at the boundary, `ffi` declares its functions, and the
//! modules below wrap them in safe types. No other crate of the workspace contains C++.

pub mod autocast;
pub mod blob;
mod callback;
pub mod copy;
pub mod count;
pub mod cuda;
mod error;
mod ffi;
pub mod frozen;
pub mod fused;
pub mod gloo;
pub mod grad_mode;
pub mod graph;
pub mod head;
pub mod hooks;
pub mod host_copy;
pub mod memory;
pub mod profile;
pub mod program;
pub mod recompute;
pub mod rng;
pub mod stacks;
pub mod store;
pub mod stream;
pub mod symbolic;
pub mod tensor;
mod terminate;

use std::io::Write;

pub use error::{ErrorKind, ShimError, is_of_device, kind_of};
pub use terminate::on_lost_exception;

/// Returns the libtorch version of the compiled shim, for example `2.11.0`.
pub fn libtorch_version() -> String {
    ffi::dt_libtorch_version().to_owned()
}

/// Silences libtorch's log lines below fatal: callers get lost peers and time-outs as typed errors, without
/// C++ stack frames. If the user has set `TORCH_CPP_LOG_LEVEL` (INFO, WARNING, ERROR), it applies instead.
/// Call it before other threads use libtorch.
pub fn quiet_logs() {
    let level = match std::env::var("TORCH_CPP_LOG_LEVEL").as_deref() {
        Ok("INFO" | "0") => 0,
        Ok("WARNING" | "1") => 1,
        Ok("ERROR" | "2") => 2,
        _ => 3,
    };
    ffi::dt_set_log_level(level);
}

/// Ends the process, whose other threads may still run, but hold no stream. libtorch's static destructors do not run: they unregister
/// each of its operators, which takes 0.14 s. They do run with CUDA, with `LD_PRELOAD` and with `LLVM_PROFILE_FILE`, because profilers
/// write their records then.
pub fn end_process(code: u8) -> ! {
    let is_set = |name| std::env::var_os(name).is_some();
    if !cuda::is_loaded() && !is_set("LD_PRELOAD") && !is_set("LLVM_PROFILE_FILE") {
        // A closed pipe is no error at the end.
        let _ = std::io::stdout().flush();
        // SAFETY: fflush of null writes all streams of C, and _exit does not return.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(code.into());
        }
    }
    std::process::exit(code.into())
}

/// Makes malloc keep freed host memory for the next step: returning it to the system costs about a tenth of a
/// step on a CPU. The user's `MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_` or `GLIBC_TUNABLES` take
/// precedence. Call it once, before large tensors are created.
pub fn keep_freed_memory() -> Result<(), ShimError> {
    let set = |name| std::env::var_os(name).is_some();
    if set("MALLOC_TRIM_THRESHOLD_") || set("MALLOC_MMAP_THRESHOLD_") || set("GLIBC_TUNABLES") {
        return Ok(());
    }
    // The process keeps blocks of up to 32 MiB, glibc's own limit, as libtorch does on devices.
    let settings =
        [(libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, i32::MAX), (libc::M_TOP_PAD, 64 << 20)];
    // SAFETY: mallopt sets numbers of the allocator and touches no block.
    match settings.into_iter().all(|(setting, value)| unsafe { libc::mallopt(setting, value) } == 1) {
        true => Ok(()),
        false => Err(ShimError::new("set malloc's options", ErrorKind::Other, "mallopt failed")),
    }
}
