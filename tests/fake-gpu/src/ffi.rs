//! The edge to C: exported functions and their calls, results and texts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use crate::codes::{Code, Outcome};
use crate::counts;
use crate::messages;

/// An exported function and the number of its calls.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    calls: OnceLock<&'static AtomicU64>,
}

impl Site {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, calls: OnceLock::new() }
    }

    /// Counts a call and returns its number, from 1.
    fn enter(&self) -> u64 {
        let calls = self.calls.get_or_init(|| counts::counter(self.name));
        if messages::is_tracing() {
            messages::trace(self.name);
        }
        calls.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Runs the body of a function with the number of the call.
pub(crate) fn framed<T>(site: &Site, body: impl FnOnce(u64) -> T) -> T {
    contain(site.name, || body(site.enter()))
}

/// Runs code from which no panic may cross into C, or end a thread unseen: it ends the process with a message.
pub(crate) fn contain<T>(name: &str, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        messages::report(&format!("{name} panicked: this is an error of the fake GPU"));
        std::process::abort()
    })
}

/// Writes a result where the caller wants it; null means that the caller does not.
///
/// # Safety
/// `to` is null or valid for writes.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Outcome {
    if !to.is_null() {
        // SAFETY: see above.
        unsafe { to.write(value) };
    }
    Ok(())
}

/// Writes a text of at most `size` bytes with its final zero.
///
/// # Safety
/// `to` is valid for writes of `size` bytes.
pub(crate) unsafe fn give_text(to: *mut std::ffi::c_char, size: usize, text: &str) -> Outcome {
    if size > 0 {
        let length = text.len().min(size - 1);
        // SAFETY: see above; `length` is less than `size`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, length);
            to.add(length).write(0);
        }
    }
    Ok(())
}

/// Returns a C text; null is an empty one.
///
/// # Safety
/// `text` is null or ends with a zero.
pub(crate) unsafe fn text_of<'a>(text: *const std::ffi::c_char) -> std::borrow::Cow<'a, str> {
    if text.is_null() {
        return "".into();
    }
    // SAFETY: see above.
    unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy()
}
