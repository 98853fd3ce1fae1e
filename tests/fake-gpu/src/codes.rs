//! The codes of CUDA's runtime: names, texts, and the thread's last error.

use std::cell::Cell;
use std::ffi::{CString, c_char};
use std::sync::LazyLock;

use cudarc::runtime::sys::cudaError as E;

use crate::messages;

/// A library's code; 0 is success.
pub(crate) type Code = i32;

/// The result of a function's body.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident $variant:ident $text:literal)*) => {
        $(pub(crate) const $name: Code = E::$variant as Code;)*
        const TEXTS: &[(E, &str)] = &[$((E::$variant, $text)),*];
    };
}

codes! {
    INVALID_VALUE cudaErrorInvalidValue "invalid argument"
    OUT_OF_MEMORY cudaErrorMemoryAllocation "out of memory"
    INVALID_CONFIGURATION cudaErrorInvalidConfiguration "invalid configuration argument"
    INVALID_SYMBOL cudaErrorInvalidSymbol "invalid device symbol"
    INSUFFICIENT_DRIVER cudaErrorInsufficientDriver "CUDA driver version is insufficient for CUDA runtime version"
    DEVICES_UNAVAILABLE cudaErrorDevicesUnavailable "CUDA-capable device(s) is/are busy or unavailable"
    MISSING_CONFIGURATION cudaErrorMissingConfiguration "__global__ function call is not configured"
    INVALID_FUNCTION cudaErrorInvalidDeviceFunction "invalid device function"
    NO_DEVICE cudaErrorNoDevice "no CUDA-capable device is detected"
    INVALID_DEVICE cudaErrorInvalidDevice "invalid device ordinal"
    NO_IMAGE cudaErrorNoKernelImageForDevice "no kernel image is available for execution on the device"
    ECC cudaErrorECCUncorrectable "uncorrectable ECC error encountered"
    PEER_UNSUPPORTED cudaErrorPeerAccessUnsupported "peer access is not supported between these two devices"
    NVLINK cudaErrorNvlinkUncorrectable "uncorrectable NVLink error detected during the execution"
    INVALID_HANDLE cudaErrorInvalidResourceHandle "invalid resource handle"
    ILLEGAL_STATE cudaErrorIllegalState "the operation cannot be performed in the present state"
    NOT_READY cudaErrorNotReady "device not ready"
    ILLEGAL_ADDRESS cudaErrorIllegalAddress "an illegal memory access was encountered"
    LAUNCH_TIMEOUT cudaErrorLaunchTimeout "the launch timed out and was terminated"
    PEER_ENABLED cudaErrorPeerAccessAlreadyEnabled "peer access is already enabled"
    ASSERT cudaErrorAssert "device-side assert triggered"
    REGISTERED cudaErrorHostMemoryAlreadyRegistered "part or all of the requested memory range is already mapped"
    NOT_REGISTERED cudaErrorHostMemoryNotRegistered "pointer does not correspond to a registered memory region"
    STACK cudaErrorHardwareStackError "hardware stack error"
    ILLEGAL_INSTRUCTION cudaErrorIllegalInstruction "an illegal instruction was encountered"
    MISALIGNED cudaErrorMisalignedAddress "misaligned address"
    ADDRESS_SPACE cudaErrorInvalidAddressSpace "operation not supported on global/shared address space"
    INVALID_PC cudaErrorInvalidPc "invalid program counter"
    LAUNCH_FAILURE cudaErrorLaunchFailure "unspecified launch failure"
    NOT_SUPPORTED cudaErrorNotSupported "operation not supported"
    CAPTURE_UNSUPPORTED cudaErrorStreamCaptureUnsupported "operation not permitted when stream is capturing"
    CAPTURE_INVALIDATED cudaErrorStreamCaptureInvalidated "operation failed due to a previous error during capture"
    CAPTURE_MERGE cudaErrorStreamCaptureMerge "operation would result in a merge of separate capture sequences"
    CAPTURE_UNMATCHED cudaErrorStreamCaptureUnmatched "capture was not initiated in this stream"
    CAPTURE_UNJOINED cudaErrorStreamCaptureUnjoined "capturing stream has unjoined work"
    CAPTURE_ISOLATION cudaErrorStreamCaptureIsolation "dependency created on uncaptured work in another stream"
    CAPTURE_IMPLICIT cudaErrorStreamCaptureImplicit "operation would make the legacy stream depend on a capturing blocking stream"
    CAPTURED_EVENT cudaErrorCapturedEvent "operation not permitted on an event last recorded in a capturing stream"
    CAPTURE_WRONG_THREAD cudaErrorStreamCaptureWrongThread "attempt to terminate a thread-local capture sequence from another thread"
    UNKNOWN cudaErrorUnknown "unknown error"
}

/// Returns whether an error stays until the process ends.
pub(crate) fn is_sticky(code: Code) -> bool {
    let all = [
        ECC,
        NVLINK,
        ILLEGAL_ADDRESS,
        LAUNCH_TIMEOUT,
        ASSERT,
        STACK,
        ILLEGAL_INSTRUCTION,
        MISALIGNED,
        ADDRESS_SPACE,
        INVALID_PC,
        LAUNCH_FAILURE,
        DEVICES_UNAVAILABLE,
        UNKNOWN,
    ];
    all.contains(&code)
}

thread_local! {
    static LAST: Cell<Code> = const { Cell::new(0) };
}

/// Keeps a failed function's code as the thread's last error, and returns it.
pub(crate) fn remember(outcome: Outcome) -> Code {
    let code = outcome.err().unwrap_or(0);
    if code != 0 {
        LAST.set(code);
        if messages::is_tracing() {
            messages::trace(&format!("  = error {code}"));
        }
    }
    code
}

struct Row {
    code: Code,
    name: CString,
    text: CString,
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let text = |text: String| CString::new(text).unwrap_or_default();
    let row = |(code, words): &(E, &str)| Row {
        code: *code as Code,
        name: text(format!("{code:?}")),
        text: text((*words).to_owned()),
    };
    // These are faults only.
    let faults = [
        (E::cudaErrorInitializationError, "initialization error"),
        (E::cudaErrorSymbolNotFound, "named symbol not found"),
        (E::cudaErrorSystemNotReady, "system not yet initialized"),
    ];
    let mut rows = vec![Row { code: 0, name: c"cudaSuccess".into(), text: c"no error".into() }];
    rows.extend(TEXTS.iter().chain(&faults).map(row));
    rows
});

pub(crate) fn name_of(code: Code) -> *const c_char {
    ROWS.iter().find(|row| row.code == code).map_or(c"unrecognized error code", |row| &row.name).as_ptr()
}

pub(crate) fn text_of(code: Code) -> *const c_char {
    ROWS.iter().find(|row| row.code == code).map_or(c"unrecognized error code", |row| &row.text).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: Code) -> *const c_char {
    name_of(code)
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: Code) -> *const c_char {
    text_of(code)
}

/// Returns the thread's last error.
pub(crate) fn last() -> Code {
    LAST.get()
}

/// Returns the thread's last error, and forgets it.
pub(crate) fn take_last() -> Code {
    LAST.replace(0)
}
