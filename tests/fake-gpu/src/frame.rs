//! The frames in which exported functions run: what each library does before and after its body.
//!
//! Bodies are passed as `dyn`: a frame is compiled once, not for each of a thousand functions.

use crate::codes::{self, Code, Outcome};
use crate::ffi::{Site, framed};
use crate::{device, faults};

/// Defines exported functions. `$frame` is one of the functions below; a body is an [`Outcome`].
macro_rules! api {
    ($frame:ident: $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, unused_unsafe, clippy::too_many_arguments)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::ffi::Code {
            static SITE: $crate::ffi::Site = $crate::ffi::Site::new(stringify!($name));
            $crate::frame::$frame(&SITE, &mut || -> $crate::ffi::Outcome {
                // SAFETY: the caller passes what this function's public documentation asks for: pointers to
                // results are valid or null where null is allowed, and inputs live until the function returns.
                unsafe { $body }
            })
        }
    )*};
}
pub(crate) use api;

/// A function of CUDA's runtime: has faults and sticky errors, and its error is the thread's last error.
pub(crate) fn runtime(site: &Site, body: &mut dyn FnMut() -> Outcome) -> Code {
    framed(site, |call| {
        let outcome = faults::fail(site.name, call).and_then(|()| device::usable()).and_then(|()| body());
        codes::remember(outcome)
    })
}

/// A query of CUDA's runtime: works after a sticky error and without a device.
pub(crate) fn query(site: &Site, body: &mut dyn FnMut() -> Outcome) -> Code {
    framed(site, |call| codes::remember(faults::fail(site.name, call).and_then(|()| body())))
}

/// A function of another library, which has its own codes.
pub(crate) fn library(site: &Site, body: &mut dyn FnMut() -> Outcome) -> Code {
    framed(site, |call| faults::fail(site.name, call).and_then(|()| body()).err().unwrap_or(0))
}
