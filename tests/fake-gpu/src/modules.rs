//! Kernels that a program compiles itself: NVRTC, which writes no code here, and the driver's modules.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::runtime::sys::dim3;

use crate::ffi::{give, text_of};
use crate::frame::api;
use crate::kernels::Args;
use crate::launch;
use crate::op::new_handle;

/// Returns a handle that stands for nothing.
fn handle() -> *mut c_void {
    std::ptr::without_provenance_mut(new_handle())
}

api! { library:
    fn nvrtcCreateProgram(
        program: *mut *mut c_void, _source: *const c_char, _name: *const c_char, _headers: c_int,
        _texts: *const *const c_char, _names: *const *const c_char,
    ) {
        give(program, handle())
    }
    fn nvrtcCompileProgram(_program: *mut c_void, _count: c_int, _options: *const *const c_char) { Ok(()) }
    fn nvrtcGetCUBINSize(_program: *mut c_void, size: *mut usize) { give(size, 1) }
    fn nvrtcGetCUBIN(_program: *mut c_void, code: *mut c_char) { give(code, 0) }
    fn nvrtcDestroyProgram(_program: *mut *mut c_void) { Ok(()) }
    fn cuModuleLoadData(module: *mut *mut c_void, _code: *const c_void) { give(module, handle()) }
    fn cuModuleGetFunction(function: *mut *mut c_void, _module: *mut c_void, name: *const c_char) {
        let number = launch::add_kernel(text_of(name).into_owned());
        give(function, std::ptr::without_provenance_mut(number))
    }
    fn cuLaunchKernel(
        function: *const c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: *mut c_void, args: *const *const c_void,
        _extra: *const *const c_void,
    ) {
        let grid = dim3 { x: grid_x, y: grid_y, z: grid_z };
        let block = dim3 { x: block_x, y: block_y, z: block_z };
        let shape = launch::Shape { grid, block, shared: shared as usize };
        launch::start(launch::kernel_of(function)?, shape, &Args::new(args, grid_y), stream)
    }
}
