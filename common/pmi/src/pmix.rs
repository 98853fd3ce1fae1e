//! PMIx, by its client library, which is loaded here and never unloaded: it keeps its own thread.
//!
//! Types and constants are those of `pmix_common.h`; they are the same in versions 3 to 5.

use crate::socket::Task;
use crate::{KeyValues, PmiError};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

/// The library's name since version 2.
const LIBRARY: &str = "libpmix.so.2";
const JOB_SIZE: &str = "pmix.job.size";
const ALL_RANKS: u32 = u32::MAX - 1;
const STRING: u16 = 3;
const UINT32: u16 = 14;
const GLOBAL: u8 = 3;

#[repr(C)]
#[derive(Clone)]
struct Process {
    namespace: [c_char; 256],
    rank: u32,
}

/// A key is passed as an array of this length, which some functions copy whole.
type Key = [c_char; 512];

/// The largest member of the library's union has 24 bytes and the alignment of a pointer.
#[repr(C)]
struct Value {
    kind: u16,
    data: [u64; 3],
}

type Init = unsafe extern "C" fn(*mut Process, *mut c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const c_void, usize) -> c_int;
type Get =
    unsafe extern "C" fn(*const Process, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The library's functions.
#[derive(Debug)]
struct Calls {
    init: Init,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
    error_string: ErrorString,
}

impl Calls {
    fn load() -> Result<Self, PmiError> {
        let failed = |error: libloading::Error| PmiError::NoLibrary(error.to_string());
        // SAFETY: initialisers of libpmix only register variables.
        let library = unsafe { Library::new(LIBRARY) }.map_err(failed)?;
        // SAFETY: the types are those of the functions in pmix.h, and the library stays loaded.
        let calls = unsafe {
            Self {
                init: *library.get::<Init>("PMIx_Init").map_err(failed)?,
                put: *library.get::<Put>("PMIx_Put").map_err(failed)?,
                commit: *library.get::<Commit>("PMIx_Commit").map_err(failed)?,
                fence: *library.get::<Fence>("PMIx_Fence").map_err(failed)?,
                get: *library.get::<Get>("PMIx_Get").map_err(failed)?,
                finalize: *library.get::<Finalize>("PMIx_Finalize").map_err(failed)?,
                error_string: *library.get::<ErrorString>("PMIx_Error_string").map_err(failed)?,
            }
        };
        std::mem::forget(library);
        Ok(calls)
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), PmiError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a constant text that ends with NUL, for any number.
        let reason = unsafe { CStr::from_ptr((self.error_string)(status)) };
        Err(PmiError::Pmix { call, reason: reason.to_string_lossy().into_owned() })
    }
}

#[derive(Debug)]
pub(crate) struct Pmix {
    calls: Calls,
    namespace: [c_char; 256],
}

impl Pmix {
    pub(crate) fn connect() -> Result<(Self, Task), PmiError> {
        let calls = Calls::load()?;
        let mut own = MaybeUninit::<Process>::zeroed();
        // SAFETY: the library fills the process; no directives are a null pointer.
        let status = unsafe { (calls.init)(own.as_mut_ptr(), ptr::null_mut(), 0) };
        calls.check("PMIx_Init", status)?;
        // SAFETY: all zeros are a process, and the library has filled it.
        let own = unsafe { own.assume_init() };
        let pmix = Self { calls, namespace: own.namespace };
        let size = pmix.value(ALL_RANKS, JOB_SIZE)?;
        match size.kind {
            UINT32 => Ok((pmix, Task { rank: own.rank as usize, size: size.data[0] as u32 as usize })),
            kind => Err(other_kind(kind)),
        }
    }

    /// Returns a copy of a value. The memory behind its pointers is never freed: a task asks for a few values once.
    fn value(&self, rank: u32, name: &str) -> Result<Value, PmiError> {
        let of = Process { namespace: self.namespace, rank };
        let name = key(name);
        let mut found = ptr::null_mut();
        // SAFETY: all pointers are valid during the call; on success the library returns a value on the heap.
        let status = unsafe { (self.calls.get)(&of, name.as_ptr(), ptr::null(), 0, &mut found) };
        self.calls.check("PMIx_Get", status)?;
        if found.is_null() {
            return Err(PmiError::Pmix { call: "PMIx_Get", reason: "no value".to_owned() });
        }
        // SAFETY: not null, and the library returns whole values, which may be read as bytes.
        Ok(unsafe { found.read() })
    }
}

fn other_kind(kind: u16) -> PmiError {
    PmiError::Pmix { call: "PMIx_Get", reason: format!("a value of type {kind}") }
}

fn key(name: &str) -> Key {
    let mut key = [0; 512];
    // The last character stays NUL.
    for (to, from) in key.iter_mut().take(511).zip(name.bytes()) {
        *to = from as c_char;
    }
    key
}

impl KeyValues for Pmix {
    fn put(&mut self, name: &str, text: &str) -> Result<(), PmiError> {
        let text = CString::new(text).map_err(|_| PmiError::TooLong { bytes: text.len() })?;
        let mut value = Value { kind: STRING, data: [text.as_ptr() as u64, 0, 0] };
        // SAFETY: the library copies key and text before it returns.
        let status = unsafe { (self.calls.put)(GLOBAL, key(name).as_ptr(), &mut value) };
        self.calls.check("PMIx_Put", status)?;
        // SAFETY: has no arguments.
        self.calls.check("PMIx_Commit", unsafe { (self.calls.commit)() })
    }

    fn fence(&mut self) -> Result<(), PmiError> {
        // SAFETY: no processes are all of the namespace, and no directives are a null pointer.
        let status = unsafe { (self.calls.fence)(ptr::null(), 0, ptr::null(), 0) };
        self.calls.check("PMIx_Fence", status)
    }

    fn get(&mut self, rank: usize, name: &str) -> Result<String, PmiError> {
        let value = self.value(rank as u32, name)?;
        let text = value.data[0] as *const c_char;
        if value.kind != STRING || text.is_null() {
            return Err(other_kind(value.kind));
        }
        // SAFETY: a value of this type points to a text that ends with NUL, and is never freed.
        Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    fn finalize(&mut self) -> Result<(), PmiError> {
        // SAFETY: no directives are a null pointer. Each connection is finalised once, as `finish` takes it.
        let status = unsafe { (self.calls.finalize)(ptr::null(), 0) };
        self.calls.check("PMIx_Finalize", status)
    }
}
