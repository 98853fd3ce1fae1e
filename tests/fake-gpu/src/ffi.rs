//! The edge to C: the macro that defines exported functions, and the frame in which each of their bodies runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{codes, counts, device, faults};

/// A library's code; 0 is success.
pub(crate) type Code = i32;

/// The result of a function's body.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

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
        if counts::is_tracing() {
            counts::trace(self.name);
        }
        calls.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Defines exported functions. `$frame` is one of the functions below; a body is an [`Outcome`].
macro_rules! api {
    ($frame:ident: $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, unused_unsafe, clippy::too_many_arguments)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::ffi::Code {
            static SITE: $crate::ffi::Site = $crate::ffi::Site::new(stringify!($name));
            $crate::ffi::$frame(&SITE, || -> $crate::ffi::Outcome {
                // SAFETY: the caller passes what this function's public documentation asks for: pointers to
                // results are valid or null where null is allowed, and inputs live until the function returns.
                unsafe { $body }
            })
        }
    )*};
}
pub(crate) use api;

/// A function of CUDA's runtime: has faults and sticky errors, and its error is the thread's last error.
pub(crate) fn runtime(site: &Site, body: impl FnOnce() -> Outcome) -> Code {
    framed(site, |call| {
        let outcome = faults::fail(site.name, call).and_then(|()| device::usable()).and_then(|()| body());
        codes::remember(outcome)
    })
}

/// A query of CUDA's runtime: works after a sticky error and without a device.
pub(crate) fn query(site: &Site, body: impl FnOnce() -> Outcome) -> Code {
    framed(site, |call| codes::remember(faults::fail(site.name, call).and_then(|()| body())))
}

/// A function of another library, which has its own codes.
pub(crate) fn library(site: &Site, body: impl FnOnce() -> Outcome) -> Code {
    framed(site, |call| code_of(faults::fail(site.name, call).and_then(|()| body())))
}

/// Runs the body of a function with the number of the call.
pub(crate) fn framed<T>(site: &Site, body: impl FnOnce(u64) -> T) -> T {
    contain(site.name, || body(site.enter()))
}

/// Runs code from which no panic may cross into C, or end a thread unseen: it ends the process with a message.
pub(crate) fn contain<T>(name: &str, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        counts::report(&format!("{name} panicked: this is an error of the fake GPU"));
        std::process::abort()
    })
}

pub(crate) fn code_of(outcome: Outcome) -> Code {
    outcome.err().unwrap_or(0)
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
