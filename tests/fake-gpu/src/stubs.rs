//! Functions that libtorch imports and this crate does not implement: `build.rs` writes the list. They fail loudly.

use std::ffi::{c_char, c_int, c_void};

use crate::ffi::Site;
use crate::{blas, counts, ffi, frame};

fn missing(site: &'static Site, library: &str) {
    ffi::framed(site, |_| counts::unsupported(library, site.name));
}

fn product(site: &'static Site, handle: *mut c_void) -> c_int {
    frame::library(site, &mut || blas::run(site.name, handle, Vec::new()))
}

macro_rules! stub {
    (missing $name:ident $library:literal $code:literal) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name() -> c_int {
            static SITE: Site = Site::new(stringify!($name));
            missing(&SITE, $library);
            $code
        }
    };
    // A product computes nothing: it is a kernel on the handle's stream.
    (product $name:ident $library:literal $code:literal) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name(handle: *mut c_void) -> c_int {
            static SITE: Site = Site::new(stringify!($name));
            product(&SITE, handle)
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
