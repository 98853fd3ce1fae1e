//! The driver API: devices, contexts, entry points. Its codes are those of the runtime.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{CUdevice_attribute_enum as A, CUuuid};

use crate::ffi::{Outcome, give, give_text, text_of};
use crate::frame::api;
use crate::machine::MACHINE;
use crate::op::Op;
use crate::{codes, counts, device, memory, properties, stream};

/// The handle of a device's primary context.
fn context_of(ordinal: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(ordinal + 1)
}

/// Returns the current device's context, or null.
fn opened() -> *mut c_void {
    let device = device::current().ok().filter(|device| device.has_context());
    device.map_or(std::ptr::null_mut(), |device| context_of(device.ordinal))
}

api! { library:
    fn cuInit(_flags: c_uint) {
        if MACHINE.driver_error != 0 {
            return Err(MACHINE.driver_error);
        }
        if device::all().is_empty() { Err(codes::NO_DEVICE) } else { Ok(()) }
    }
    fn cuDriverGetVersion(version: *mut c_int) { give(version, MACHINE.cuda) }
    fn cuDeviceGetCount(count: *mut c_int) { give(count, device::all().len() as c_int) }
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        device::of(ordinal)?;
        give(device, ordinal)
    }
    fn cuDeviceGetName(name: *mut c_char, size: c_int, device: c_int) {
        give_text(name, size.max(0) as usize, &device::of(device)?.unit().name)
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        give(bytes, device::of(device)?.unit().memory as usize)
    }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        let device = device::of(device)?;
        if attribute == A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as c_int {
            return give(value, 1);
        }
        give(value, properties::attribute_of(device, attribute))
    }
    fn cuDeviceGetUuid(uuid: *mut CUuuid, device: c_int) {
        give(uuid, CUuuid { bytes: device::of(device)?.unit().uuid_bytes().map(|byte| byte as c_char) })
    }
    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: c_int) {
        give(uuid, CUuuid { bytes: device::of(device)?.unit().uuid_bytes().map(|byte| byte as c_char) })
    }
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, is_active: *mut c_int) {
        give(flags, 0)?;
        give(is_active, c_int::from(device::of(device)?.has_context()))
    }
    fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) {
        let device = device::of(device)?;
        device.open()?;
        give(context, context_of(device.ordinal))
    }
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) { Ok(()) }
    fn cuCtxGetCurrent(context: *mut *mut c_void) { give(context, opened()) }
    fn cuCtxGetDevice(to: *mut c_int) { give(to, device::current()?.ordinal as c_int) }
    fn cuCtxSetCurrent(context: *mut c_void) {
        if !context.is_null() {
            device::select(device::of(context.addr() as c_int - 1)?);
        }
        Ok(())
    }
    fn cuCtxPushCurrent_v2(_context: *mut c_void) { missing("cuCtxPushCurrent_v2") }
    fn cuCtxPopCurrent_v2(_context: *mut *mut c_void) { missing("cuCtxPopCurrent_v2") }
    fn cuGetErrorString(code: c_int, text: *mut *const c_char) { give(text, codes::text_of(code)) }
    fn cuGetErrorName(code: c_int, name: *mut *const c_char) { give(name, codes::name_of(code)) }
    fn cuPointerGetAttribute(_value: *mut c_void, _attribute: c_int, _at: u64) { missing("cuPointerGetAttribute") }
    fn cuMemGetAddressRange_v2(base: *mut usize, size: *mut usize, at: usize) {
        let found = memory::find(at).ok_or(codes::INVALID_VALUE)?;
        give(base, found.base)?;
        give(size, found.size)
    }
    fn cuTensorMapEncodeTiled() { Ok(()) }
    fn cuMemsetD32Async(at: usize, value: c_uint, count: usize, handle: *mut c_void) {
        fill_words(at, value, count, handle)
    }
    fn cuStreamWriteValue32_v2(handle: *mut c_void, at: usize, value: c_uint, _flags: c_uint) {
        fill_words(at, value, 1, handle)
    }
}

fn fill_words(at: usize, value: u32, count: usize, handle: *mut c_void) -> Outcome {
    let view = memory::View::of_device(at, 4 * count).ok_or(codes::INVALID_VALUE)?;
    let work = move || (0..count).for_each(|i| view.write(4 * i, value.to_ne_bytes()));
    stream::of(handle)?.put(Op::new("fill", counts::Kind::Fill, work))
}

/// Fails a function that is not implemented.
pub(crate) fn missing(name: &str) -> Outcome {
    counts::unsupported("libcuda.so.1", name);
    Err(codes::NOT_SUPPORTED)
}

/// Returns the function of this library with a name.
fn entry_point(name: &CStr) -> *mut c_void {
    // SAFETY: the texts end with a zero. The handle of this library stays open, as the library does.
    unsafe {
        let mut own: libc::Dl_info = std::mem::zeroed();
        let here = entry_point as fn(&CStr) -> *mut c_void as *const c_void;
        if libc::dladdr(here, &mut own) == 0 {
            return std::ptr::null_mut();
        }
        let library = libc::dlopen(own.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() { std::ptr::null_mut() } else { libc::dlsym(library, name.as_ptr()) }
    }
}

api! { query:
    fn cudaGetDriverEntryPointByVersion(
        symbol: *const c_char, to: *mut *mut c_void, _version: c_uint, _flags: u64, status: *mut c_int,
    ) {
        let name = text_of(symbol);
        let names = [name.to_string(), format!("{name}_v2")].map(|name| CString::new(name).unwrap_or_default());
        let found = names.iter().map(|name| entry_point(name)).find(|found| !found.is_null());
        if found.is_none() {
            counts::note(&format!("[absent entry point] {name}"));
        }
        // 1: the symbol is not found.
        give(status, if found.is_some() { 0 } else { 1 })?;
        give(to, found.unwrap_or(std::ptr::null_mut()))
    }
}
