//! NVML: the machine's GPUs and MIG instances, whatever the process sees of them through CUDA.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t,
    nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST as LOST,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as TOO_SMALL,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID,
    nvmlReturn_enum_NVML_ERROR_NOT_FOUND as NOT_FOUND,
    nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED as NOT_SUPPORTED, nvmlUtilization_t,
};

use crate::books;
use crate::ffi::{Code, Outcome, give, give_text, text_of};
use crate::frame::api;
use crate::machine::{Capability, Link, MACHINE, MOST_GPUS};
use crate::units::{UNITS, Unit};

/// The links of a GPU with NVLink.
const LINKS: c_uint = 12;

/// Handles are indices of units, from 1.
fn unit_of(handle: usize) -> Outcome<&'static Unit> {
    let index = handle.checked_sub(1).ok_or(INVALID as Code)?;
    let unit = UNITS.get(index).ok_or(INVALID as Code)?;
    if books::is_lost(index) { Err(LOST as Code) } else { Ok(unit) }
}

fn handle_of(found: Option<usize>) -> Outcome<usize> {
    found.map(|index| index + 1).ok_or(NOT_FOUND as Code)
}

/// Returns the total and the used memory.
fn memory_of(handle: usize) -> Outcome<(u64, u64)> {
    let total = unit_of(handle)?.memory;
    Ok((total, total - books::free(handle - 1)))
}

/// Fails if the GPU has no such link.
fn check_link(handle: usize, link: c_uint) -> Outcome {
    unit_of(handle)?;
    if MACHINE.link == Link::Nvlink && link < LINKS { Ok(()) } else { Err(NOT_SUPPORTED as Code) }
}

/// Lists the processes of a unit; of a GPU, those of its instances too.
///
/// # Safety
/// `to` has room for `*count` entries.
unsafe fn processes(handle: usize, count: *mut c_uint, to: *mut nvmlProcessInfo_t) -> Outcome {
    let unit = unit_of(handle)?;
    let is_part = |(index, other): &(usize, &Unit)| {
        *index == handle - 1 || unit.instance.is_none() && other.gpu == unit.gpu
    };
    let parts = UNITS.iter().enumerate().filter(is_part);
    let all: Vec<_> = parts.flat_map(|(index, _)| books::processes(index)).collect();
    // SAFETY: see above.
    unsafe {
        let room = *count as usize;
        count.write(all.len() as c_uint);
        if room < all.len() {
            return Err(TOO_SMALL as Code);
        }
        for (index, (pid, bytes)) in all.into_iter().enumerate() {
            let none = c_uint::MAX;
            let entry =
                nvmlProcessInfo_t { pid, usedGpuMemory: bytes, gpuInstanceId: none, computeInstanceId: none };
            to.add(index).write(entry);
        }
    }
    Ok(())
}

api! { library:
    fn nvmlInit_v2() { start() }
    fn nvmlInitWithFlags(_flags: c_uint) { start() }
    fn nvmlShutdown() { Ok(()) }
    fn nvmlDeviceGetCount_v2(to: *mut c_uint) { give(to, MACHINE.gpus.len() as c_uint) }
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut usize) {
        let index = index as usize;
        if index >= MACHINE.gpus.len() {
            return Err(INVALID as Code);
        }
        unit_of(index + 1)?;
        give(to, index + 1)
    }
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, to: *mut usize) {
        let uuid = text_of(uuid);
        give(to, handle_of(UNITS.iter().position(|unit| unit.uuid == uuid))?)
    }
    fn nvmlDeviceGetHandleByPciBusId_v2(id: *const c_char, to: *mut usize) {
        let id = text_of(id);
        let bus = id.split(':').nth(1).and_then(|bus| u32::from_str_radix(bus, 16).ok()).ok_or(INVALID as Code)?;
        give(to, handle_of(UNITS.iter().position(|unit| unit.bus() == bus))?)
    }
    fn nvmlDeviceGetIndex(handle: usize, to: *mut c_uint) {
        let unit = unit_of(handle)?;
        give(to, unit.instance.unwrap_or(unit.gpu) as c_uint)
    }
    fn nvmlDeviceGetName(handle: usize, to: *mut c_char, size: c_uint) {
        give_text(to, size as usize, &unit_of(handle)?.name)
    }
    fn nvmlDeviceGetUUID(handle: usize, to: *mut c_char, size: c_uint) {
        give_text(to, size as usize, &unit_of(handle)?.uuid)
    }
    fn nvmlDeviceGetMemoryInfo(handle: usize, to: *mut nvmlMemory_t) {
        let (total, used) = memory_of(handle)?;
        give(to, nvmlMemory_t { total, used, free: total - used })
    }
    fn nvmlDeviceGetMemoryInfo_v2(handle: usize, to: *mut nvmlMemory_v2_t) {
        let (total, used) = memory_of(handle)?;
        let version = (*to).version;
        give(to, nvmlMemory_v2_t { version, total, reserved: 0, used, free: total - used })
    }
    fn nvmlDeviceGetCudaComputeCapability(handle: usize, major: *mut c_int, minor: *mut c_int) {
        let Capability(a, b) = unit_of(handle)?.gpu().compute_capability;
        give(major, a)?;
        give(minor, b)
    }
    fn nvmlDeviceGetNumGpuCores(handle: usize, to: *mut c_uint) {
        let gpu = unit_of(handle)?.gpu();
        let cores = if matches!(gpu.compute_capability, Capability(7, _) | Capability(8, 0)) { 64 } else { 128 };
        give(to, gpu.multiprocessors as c_uint * cores)
    }
    fn nvmlDeviceGetPersistenceMode(handle: usize, to: *mut c_uint) {
        unit_of(handle)?;
        give(to, 1)
    }
    fn nvmlDeviceGetComputeMode(handle: usize, to: *mut c_int) {
        // 3: exclusive, where contexts fail since another process has one.
        give(to, if unit_of(handle)?.gpu().context_error == 0 { 0 } else { 3 })
    }
    fn nvmlDeviceGetMigMode(handle: usize, current: *mut c_uint, pending: *mut c_uint) {
        let mode = c_uint::from(!unit_of(handle)?.gpu().mig.is_empty());
        give(current, mode)?;
        give(pending, mode)
    }
    fn nvmlDeviceGetMaxMigDeviceCount(handle: usize, to: *mut c_uint) {
        let unit = unit_of(handle)?;
        give(to, if unit.instance.is_some() { 0 } else { unit.gpu().mig.len() as c_uint })
    }
    fn nvmlDeviceGetMigDeviceHandleByIndex(handle: usize, index: c_uint, to: *mut usize) {
        let gpu = unit_of(handle)?.gpu;
        let is_it = |unit: &Unit| unit.gpu == gpu && unit.instance == Some(index as usize);
        give(to, handle_of(UNITS.iter().position(is_it))?)
    }
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: usize, to: *mut usize) {
        give(to, unit_of(handle)?.gpu + 1)
    }
    fn nvmlDeviceIsMigDeviceHandle(handle: usize, to: *mut c_uint) {
        give(to, c_uint::from(unit_of(handle)?.instance.is_some()))
    }
    fn nvmlDeviceGetUtilizationRates(handle: usize, to: *mut nvmlUtilization_t) {
        if unit_of(handle)?.instance.is_some() {
            return Err(NOT_SUPPORTED as Code);
        }
        give(to, nvmlUtilization_t { gpu: 50, memory: 20 })
    }
    fn nvmlDeviceGetTemperature(handle: usize, _sensor: c_int, to: *mut c_uint) {
        unit_of(handle)?;
        give(to, 45)
    }
    fn nvmlDeviceGetPowerUsage(handle: usize, to: *mut c_uint) {
        unit_of(handle)?;
        give(to, 120_000)
    }
    fn nvmlSystemGetDriverVersion(to: *mut c_char, size: c_uint) { give_text(to, size as usize, &MACHINE.driver) }
    fn nvmlSystemGetCudaDriverVersion(to: *mut c_int) { give(to, MACHINE.cuda) }
    fn nvmlSystemGetCudaDriverVersion_v2(to: *mut c_int) { give(to, MACHINE.cuda) }
    fn nvmlDeviceGetComputeRunningProcesses(handle: usize, count: *mut c_uint, to: *mut nvmlProcessInfo_t) {
        processes(handle, count, to)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(handle: usize, count: *mut c_uint, to: *mut nvmlProcessInfo_t) {
        processes(handle, count, to)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(handle: usize, count: *mut c_uint, to: *mut nvmlProcessInfo_t) {
        processes(handle, count, to)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(handle: usize, count: *mut c_uint, _to: *mut nvmlProcessInfo_t) {
        unit_of(handle)?;
        give(count, 0)
    }
    fn nvmlDeviceGetPciInfo_v3(handle: usize, to: *mut nvmlPciInfo_t) {
        let bus = unit_of(handle)?.bus();
        pci(to, bus)
    }
    fn nvmlDeviceGetNvLinkState(handle: usize, link: c_uint, to: *mut c_uint) {
        check_link(handle, link)?;
        give(to, 1)
    }
    fn nvmlDeviceGetNvLinkRemoteDeviceType(handle: usize, link: c_uint, to: *mut c_uint) {
        check_link(handle, link)?;
        // 2: a switch, which connects all GPUs.
        give(to, 2)
    }
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(handle: usize, link: c_uint, to: *mut nvmlPciInfo_t) {
        check_link(handle, link)?;
        pci(to, 0xc0)
    }
    fn nvmlDeviceGetP2PStatus(first: usize, second: usize, _index: c_int, to: *mut c_int) {
        unit_of(first)?;
        unit_of(second)?;
        // 1: the chipset does not support it.
        give(to, c_int::from(MACHINE.link == Link::None))
    }
    fn nvmlDeviceGetTopologyCommonAncestor(first: usize, second: usize, to: *mut c_int) {
        unit_of(first)?;
        unit_of(second)?;
        // A host bridge.
        give(to, 30)
    }
}

fn start() -> Outcome {
    const { assert!(MOST_GPUS < 0xc0 - 0x10, "the switch has its own bus") };
    match MACHINE.nvml_error {
        0 => Ok(()),
        code => Err(code as Code),
    }
}

/// # Safety
/// `to` is valid for writes.
unsafe fn pci(to: *mut nvmlPciInfo_t, bus: u32) -> Outcome {
    // SAFETY: see above; all bytes zero is a valid value.
    unsafe {
        to.write_bytes(0, 1);
        (*to).bus = bus;
        give_text((*to).busId.as_mut_ptr(), 32, &format!("00000000:{bus:02X}:00.0"))?;
        give_text((*to).busIdLegacy.as_mut_ptr(), 16, &format!("0000:{bus:02X}:00.0"))
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: c_uint) -> *const c_char {
    let text = match code {
        0 => c"The operation was successful",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        15 => c"GPU is lost",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
