//! Functions that libtorch imports and this crate does not implement: `build.rs` writes the list. They fail loudly.

use std::ffi::{c_char, c_int, c_void};

use crate::ffi::Site;
use crate::{blas, counts, ffi, frame};

macro_rules! stub {
    (missing $name:ident $library:literal $code:literal) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name() -> c_int {
            static SITE: Site = Site::new(stringify!($name));
            ffi::framed(&SITE, |_| counts::unsupported($library, stringify!($name)));
            $code
        }
    };
    // A product computes nothing: it is a kernel on the handle's stream.
    (product $name:ident $library:literal $code:literal) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name(handle: *mut c_void) -> c_int {
            static SITE: Site = Site::new(stringify!($name));
            frame::library(&SITE, || blas::run(stringify!($name), handle, Vec::new()))
        }
    };
    (text $name:ident $library:literal $code:literal) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name() -> *const c_char {
            concat!("a code of the fake ", $library, "\0").as_ptr().cast()
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
