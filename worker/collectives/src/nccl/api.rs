//! NCCL's functions, from the library that libtorch uses.
//!
//! The types and constants come from cudarc. This module looks the functions up itself, because cudarc's
//! loader searches only for `libnccl.so`, which NVIDIA's packages lack, and panics without it. Return codes
//! are plain numbers, because a newer NCCL may return a code that cudarc's enumeration lacks.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

use cudarc::nccl::sys::{self, ncclComm_t, ncclConfig_t, ncclUniqueId};
use dtrain_common::installation::install_own_cuda;
use dtrain_torch_shim::cuda;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

/// The name under which libtorch's CUDA library loads NCCL.
const NAME: &str = "libnccl.so.2";
/// Finds a library only if it is already loaded. glibc's value, which libloading does not define.
const RTLD_NOLOAD: c_int = 4;
/// The first version that can create and split communicators without blocking.
const OLDEST: Version = Version(21_800);

/// A return code of NCCL: [`SUCCESS`], [`IN_PROGRESS`] or an error.
pub(super) type Code = u32;
pub(super) type CudaStream = sys::cudaStream_t;

pub(super) const SUCCESS: Code = sys::ncclResult_t::ncclSuccess as Code;
pub(super) const IN_PROGRESS: Code = sys::ncclResult_t::ncclInProgress as Code;
pub(super) const SYSTEM_ERROR: Code = sys::ncclResult_t::ncclSystemError as Code;
pub(super) const REMOTE_ERROR: Code = sys::ncclResult_t::ncclRemoteError as Code;

/// NCCL cannot be used on this machine: the reason and the remedy.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
pub struct NcclError(String);

impl NcclError {
    fn missing(reason: impl std::fmt::Display) -> Self {
        Self(format!(
            "NCCL cannot be loaded: {reason}; install libtorch's CUDA set ({}), or set DTRAIN_TRANSPORT=gloo, which \
             is slower",
            install_own_cuda()
        ))
    }
}

/// A version as NCCL encodes it: 22809 is 2.28.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub i32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 10_000, self.0 / 100 % 100, self.0 % 100)
    }
}

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The NCCL functions in use; NCCL documents them.
        pub(super) struct Functions {
            $($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// # Safety
            /// The library must be NCCL, whose functions have these types.
            unsafe fn find(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the caller guarantees the types.
                    $($field: unsafe { *library.get(concat!($symbol, "\0").as_bytes())? },)*
                })
            }
        }
    };
}

functions! {
    get_version = "ncclGetVersion": fn(*mut c_int) -> Code;
    get_unique_id = "ncclGetUniqueId": fn(*mut ncclUniqueId) -> Code;
    comm_init = "ncclCommInitRankConfig": fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> Code;
    comm_split = "ncclCommSplit": fn(ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t) -> Code;
    comm_finalize = "ncclCommFinalize": fn(ncclComm_t) -> Code;
    comm_destroy = "ncclCommDestroy": fn(ncclComm_t) -> Code;
    comm_abort = "ncclCommAbort": fn(ncclComm_t) -> Code;
    comm_async_error = "ncclCommGetAsyncError": fn(ncclComm_t, *mut Code) -> Code;
    error_string = "ncclGetErrorString": fn(Code) -> *const c_char;
    last_error = "ncclGetLastError": fn(ncclComm_t) -> *const c_char;
    group_start = "ncclGroupStart": fn() -> Code;
    group_end = "ncclGroupEnd": fn() -> Code;
    all_reduce = "ncclAllReduce":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, CudaStream) -> Code;
    broadcast = "ncclBroadcast":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, CudaStream) -> Code;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, ncclComm_t, CudaStream) -> Code;
    reduce_scatter = "ncclReduceScatter":
        fn(*const c_void, *mut c_void, usize, c_int, c_int, ncclComm_t, CudaStream) -> Code;
}

/// A loaded NCCL.
pub(super) struct Api {
    pub(super) functions: Functions,
    pub(super) version: Version,
    /// The sleep of a thread that waits for NCCL's threads. Tests count the calls.
    pub(super) sleep: fn(Duration),
}

impl Api {
    /// Loads the NCCL of this process. Call it after `dtrain_torch_shim::cuda::load`: libtorch has then
    /// loaded its own, and this is the same library with the same settings and state.
    pub(super) fn load() -> Result<Self, NcclError> {
        // SAFETY: nothing is loaded, so no initialiser runs.
        let loaded = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_NOLOAD) };
        if let Ok(library) = loaded {
            return Self::from_library(library, NAME);
        }
        // A libtorch with static NCCL cannot share it. The NCCL beside libtorch has the tested version.
        let folder = cuda::library_folder().map_err(NcclError::missing)?;
        let installed = folder.join("../../nvidia/nccl/lib").join(NAME);
        match installed.is_file() {
            true => Self::open(&installed),
            false => Self::open(Path::new(NAME)),
        }
    }

    /// Opens the library at `path`, or one whose name the dynamic loader knows.
    pub(super) fn open(path: &Path) -> Result<Self, NcclError> {
        // SAFETY: NCCL's initialisers have no preconditions; finding its functions checks that it is NCCL.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| NcclError::missing(reason(&error)))?;
        Self::from_library(library, &path.display().to_string())
    }

    fn from_library(library: Library, name: &str) -> Result<Self, NcclError> {
        let unusable = |reason: String| {
            NcclError(format!("NCCL cannot be used: {name}: {reason}; use the NCCL of libtorch's CUDA set"))
        };
        // SAFETY: the library has NCCL's name, and NCCL's interface is stable within a major version.
        let functions = unsafe { Functions::find(&library) }.map_err(|error| unusable(reason(&error)))?;
        // NCCL runs threads, so the library must stay loaded until the process ends.
        std::mem::forget(library);
        let api = Self::new(functions)?;
        let version = api.version;
        match version < OLDEST {
            true => Err(unusable(format!("version {version} is older than {OLDEST}"))),
            false => Ok(api),
        }
    }

    /// Wraps functions of NCCL, or of a stand-in.
    pub(super) fn new(functions: Functions) -> Result<Self, NcclError> {
        let mut api = Self { functions, version: Version(0), sleep: std::thread::sleep };
        // SAFETY: the version is valid for writes.
        let code = unsafe { (api.functions.get_version)(&mut api.version.0) };
        match code {
            SUCCESS => Ok(api),
            code => Err(api.failure(code)),
        }
    }

    /// Returns the error of a function that failed immediately.
    pub(super) fn failure(&self, code: Code) -> NcclError {
        NcclError(format!("NCCL failed: {}", self.describe(code, std::ptr::null_mut())))
    }

    /// Returns the meaning of `code` and NCCL's last message about it. `comm` may be null.
    pub(super) fn describe(&self, code: Code, comm: ncclComm_t) -> String {
        let text = |message: *const c_char| {
            // SAFETY: both functions accept any code and a live or null communicator. They return null or a
            // string that lives as long as the library.
            let message = (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) })?;
            Some(message.to_string_lossy().trim().to_owned()).filter(|message| !message.is_empty())
        };
        // SAFETY: as above.
        let (meaning, detail) =
            unsafe { ((self.functions.error_string)(code), (self.functions.last_error)(comm)) };
        let meaning = text(meaning).unwrap_or_else(|| format!("error {code}"));
        text(detail).map_or(meaning.clone(), |detail| format!("{meaning}: {detail}"))
    }
}

/// Returns the loader's message; libloading's text has no cause.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| source.to_string())
}

/// Returns the settings of a communicator of `size` ranks: calls do not block, except with one rank. All
/// other settings are left to NCCL and its environment variables.
pub(super) fn config(version: Version, size: usize) -> ncclConfig_t {
    /// NCCL's marks for an initialised structure and for an undefined number (`NCCL_CONFIG_INITIALIZER`).
    const MAGIC: u32 = 0xcafe_beef;
    const UNDEFINED: c_int = c_int::MIN;
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: MAGIC,
        version: version.0.unsigned_abs().min(COMPILED),
        blocking: c_int::from(size == 1),
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: std::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
    }
}

/// The NCCL version of this structure: NCCL reads only the fields that this version had.
const COMPILED: u32 = 22_809;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn versions_are_printed_with_dots() {
        assert_eq!(Version(22_809).to_string(), "2.28.9");
        assert_eq!(Version(21_803).to_string(), "2.18.3");
    }

    #[test]
    fn a_missing_or_wrong_library_is_an_error_with_a_remedy() {
        let error = Api::open(Path::new("/nowhere/libnccl.so.2")).err().unwrap().to_string();
        assert!(error.contains("/nowhere/libnccl.so.2") && error.contains("setup --cuda"), "{error}");
        // A library on every system.
        let error = Api::open(Path::new("libc.so.6")).err().unwrap().to_string();
        assert!(error.contains("libc.so.6") && error.contains("ncclGetVersion"), "{error}");
    }
}
