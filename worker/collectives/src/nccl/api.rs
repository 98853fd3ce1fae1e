//! NCCL's functions, from the library that libtorch itself uses.
//!
//! cudarc names NCCL's types and numbers. Its own loader looks for `libnccl.so` alone, which NVIDIA's packages do not have, and
//! panics where it finds none; so the functions are looked up here. What they return is a plain number here: a newer NCCL may
//! return one that cudarc's enumeration does not name.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

use cudarc::nccl::sys::{self, ncclComm_t, ncclConfig_t, ncclUniqueId};
use dtrain_torch_shim::cuda;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

/// The name that libtorch's CUDA library asks the loader for.
const NAME: &str = "libnccl.so.2";
/// Do not load: only find what is loaded. glibc's value, which libloading does not name.
const RTLD_NOLOAD: c_int = 4;
/// The first version whose communicators can be made, and split, without blocking.
const OLDEST: Version = Version(21_800);

/// What a function of NCCL has answered: [`SUCCESS`], [`IN_PROGRESS`] or an error.
pub(super) type Code = u32;
pub(super) type CudaStream = sys::cudaStream_t;

pub(super) const SUCCESS: Code = sys::ncclResult_t::ncclSuccess as Code;
pub(super) const IN_PROGRESS: Code = sys::ncclResult_t::ncclInProgress as Code;
pub(super) const SYSTEM_ERROR: Code = sys::ncclResult_t::ncclSystemError as Code;
pub(super) const REMOTE_ERROR: Code = sys::ncclResult_t::ncclRemoteError as Code;

/// NCCL cannot be used on this machine: why, and what to do.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
pub struct NcclError(String);

impl NcclError {
    fn missing(reason: impl std::fmt::Display) -> Self {
        Self(format!(
            "NCCL cannot be loaded ({reason}); it comes with libtorch's CUDA set, which `cargo xtask setup --cuda` fetches, and \
             DTRAIN_TRANSPORT=gloo does without it, slowly"
        ))
    }
}

/// A version as NCCL writes it in one number: 22809 is 2.28.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub i32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 10_000, self.0 / 100 % 100, self.0 % 100)
    }
}

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that are used here, as NCCL documents them.
        pub(super) struct Functions {
            $($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// # Safety
            /// The library is an NCCL: its functions have these types.
            unsafe fn find(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the caller vouches for the types.
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
    /// How a thread sleeps that waits for NCCL's own threads; tests count it.
    pub(super) sleep: fn(Duration),
}

impl Api {
    /// That of this process. Call it after `dtrain_torch_shim::cuda::load`: libtorch has then loaded its own, and this is the
    /// same one, with the same settings and the same state.
    pub(super) fn load() -> Result<Self, NcclError> {
        // SAFETY: nothing is loaded, and no initialiser runs.
        let loaded = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_NOLOAD) };
        if let Ok(library) = loaded {
            return Self::over(library, NAME);
        }
        // A libtorch that holds NCCL in itself has none to share; one from its own folders has the version it was tested with.
        let folder = cuda::library_folder().map_err(NcclError::missing)?;
        let beside = folder.join("../../nvidia/nccl/lib").join(NAME);
        match beside.is_file() {
            true => Self::open(&beside),
            false => Self::open(Path::new(NAME)),
        }
    }

    /// The library at `path`, or of a name that the loader knows.
    pub(super) fn open(path: &Path) -> Result<Self, NcclError> {
        // SAFETY: NCCL's initialisers have no conditions; whether it is an NCCL is seen by its functions.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| NcclError::missing(reason(&error)))?;
        Self::over(library, &path.display().to_string())
    }

    fn over(library: Library, name: &str) -> Result<Self, NcclError> {
        let unusable = |reason: String| {
            let own = "libtorch's own is in its CUDA set";
            NcclError(format!("{name} is not an NCCL that can be used: {reason}; {own}"))
        };
        // SAFETY: the library goes by NCCL's name, and NCCL keeps its interface within a major version.
        let functions = unsafe { Functions::find(&library) }.map_err(|error| unusable(reason(&error)))?;
        // It has threads of its own: it stays for the life of the process.
        std::mem::forget(library);
        let api = Self::new(functions)?;
        let version = api.version;
        match version < OLDEST {
            true => {
                Err(unusable(format!("it is version {version}, and {OLDEST} is the first that can be used")))
            }
            false => Ok(api),
        }
    }

    /// Over functions that are NCCL's, or behave like them.
    pub(super) fn new(functions: Functions) -> Result<Self, NcclError> {
        let mut api = Self { functions, version: Version(0), sleep: std::thread::sleep };
        // SAFETY: the version is a valid place.
        let code = unsafe { (api.functions.get_version)(&mut api.version.0) };
        match code {
            SUCCESS => Ok(api),
            code => Err(api.fails(code)),
        }
    }

    /// NCCL fails at once.
    pub(super) fn fails(&self, code: Code) -> NcclError {
        NcclError(format!("NCCL fails at once: {}", self.words(code, std::ptr::null_mut())))
    }

    /// What `code` means, and what NCCL last said of it. `comm` may be null.
    pub(super) fn words(&self, code: Code, comm: ncclComm_t) -> String {
        let text = |words: *const c_char| {
            // SAFETY: both functions return null or a string that lives as long as the library, and take any code and a live or null
            // communicator.
            let words = (!words.is_null()).then(|| unsafe { CStr::from_ptr(words) })?;
            Some(words.to_string_lossy().trim().to_owned()).filter(|words| !words.is_empty())
        };
        // SAFETY: as above.
        let (meaning, detail) =
            unsafe { ((self.functions.error_string)(code), (self.functions.last_error)(comm)) };
        let meaning = text(meaning).unwrap_or_else(|| format!("error {code}"));
        text(detail).map_or(meaning.clone(), |detail| format!("{meaning}: {detail}"))
    }
}

/// What the loader says; libloading's own words are only that it failed.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| source.to_string())
}

/// The settings of a communicator of `size` ranks: calls return at once, unless there is no other rank that they could wait for;
/// everything else is NCCL's own choice or its environment's.
pub(super) fn config(version: Version, size: usize) -> ncclConfig_t {
    /// NCCL's marks for a structure that is filled in, and for a number that is not (`NCCL_CONFIG_INITIALIZER`).
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

/// The version whose structure this is: NCCL reads as much of it as that version had.
const COMPILED: u32 = 22_809;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_version_reads_as_people_write_it() {
        assert_eq!(Version(22_809).to_string(), "2.28.9");
        assert_eq!(Version(21_803).to_string(), "2.18.3");
    }

    #[test]
    fn a_library_that_is_not_there_or_is_none_is_an_error_with_a_remedy() {
        let error = Api::open(Path::new("/nowhere/libnccl.so.2")).err().unwrap().to_string();
        assert!(error.contains("/nowhere/libnccl.so.2") && error.contains("setup --cuda"), "{error}");
        // A library that every process can load.
        let error = Api::open(Path::new("libc.so.6")).err().unwrap().to_string();
        assert!(error.contains("libc.so.6") && error.contains("ncclGetVersion"), "{error}");
    }
}
