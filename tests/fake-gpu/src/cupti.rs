//! CUPTI's texts. Its other functions are stubs, so a profiler records the host alone.

use std::ffi::{c_char, c_int};

use crate::ffi;

/// Gives the text of a code.
///
/// # Safety
/// `text` is null or valid for writes.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuptiGetResultString(_code: c_int, text: *mut *const c_char) -> c_int {
    let words = c"a code of the fake libcupti.so.13";
    // SAFETY: see above; the words live for ever.
    match unsafe { ffi::give(text, words.as_ptr()) } {
        Ok(()) => 0,
        Err(_) => 1,
    }
}
