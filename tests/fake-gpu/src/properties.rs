//! What CUDA's runtime tells about devices and errors.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::runtime::sys::{cudaDeviceAttr as A, cudaDeviceProp};

use crate::codes::{self, Code};
use crate::counts::{self, Kind};
use crate::device::{self, Device};
use crate::ffi::{Site, framed, give, give_text};
use crate::frame::api;
use crate::machine::{Capability, Link, MACHINE};
use crate::{capture, stream};

/// Returns the most threads that run at once on a multiprocessor (CUDA's programming guide, technical specifications).
fn threads_per_multiprocessor(capability: Capability) -> c_int {
    match capability {
        Capability(7, 5) => 1024,
        Capability(8, 6..) | Capability(11.., _) => 1536,
        _ => 2048,
    }
}

/// Returns the KiB of shared memory of a multiprocessor; a block may have one less, except for capability 7.5. From the same table.
fn shared_kib(capability: Capability) -> usize {
    match capability {
        Capability(7, _) => 64,
        Capability(8, 6 | 9) | Capability(12.., _) => 100,
        Capability(8, _) => 164,
        _ => 228,
    }
}

/// Returns the most KiB of shared memory of a block.
fn shared_kib_of_block(capability: Capability) -> usize {
    let all = shared_kib(capability);
    if all == 64 { all } else { all - 1 }
}

/// Returns an attribute; those without a meaning here are 0.
pub(crate) fn attribute_of(device: &Device, attribute: c_int) -> c_int {
    let unit = device.unit();
    let capability = unit.gpu().compute_capability;
    let table = [
        (A::cudaDevAttrUnifiedAddressing, 1),
        (A::cudaDevAttrConcurrentKernels, 1),
        (A::cudaDevAttrCanMapHostMemory, 1),
        (A::cudaDevAttrCooperativeLaunch, 1),
        (A::cudaDevAttrHostRegisterSupported, 1),
        (A::cudaDevAttrMemoryPoolsSupported, 1),
        (A::cudaDevAttrStreamPrioritiesSupported, 1),
        (A::cudaDevAttrMaxThreadsPerBlock, 1024),
        (A::cudaDevAttrMaxBlockDimX, 1024),
        (A::cudaDevAttrMaxBlockDimY, 1024),
        (A::cudaDevAttrMaxBlockDimZ, 64),
        (A::cudaDevAttrMaxGridDimX, i32::MAX),
        (A::cudaDevAttrMaxGridDimY, 65535),
        (A::cudaDevAttrMaxGridDimZ, 65535),
        (A::cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10),
        (A::cudaDevAttrWarpSize, 32),
        (A::cudaDevAttrMultiProcessorCount, unit.multiprocessors),
        (A::cudaDevAttrMaxThreadsPerMultiProcessor, threads_per_multiprocessor(capability)),
        (A::cudaDevAttrComputeCapabilityMajor, capability.0),
        (A::cudaDevAttrComputeCapabilityMinor, capability.1),
        (A::cudaDevAttrMaxSharedMemoryPerMultiprocessor, (shared_kib(capability) << 10) as c_int),
        (A::cudaDevAttrMaxSharedMemoryPerBlockOptin, (shared_kib_of_block(capability) << 10) as c_int),
        (A::cudaDevAttrMaxRegistersPerBlock, 65536),
        (A::cudaDevAttrMaxRegistersPerMultiprocessor, 65536),
        (A::cudaDevAttrL2CacheSize, 40 << 20),
        (A::cudaDevAttrPciBusId, unit.bus() as c_int),
        (A::cudaDevAttrClockRate, 1_410_000),
        (A::cudaDevAttrMemoryClockRate, 1_215_000),
        (A::cudaDevAttrGlobalMemoryBusWidth, 5120),
        (A::cudaDevAttrMaxBlocksPerMultiprocessor, 32),
    ];
    table.into_iter().find(|(other, _)| attribute == *other as c_int).map_or(0, |(_, value)| value)
}

fn describe(device: &Device, p: &mut cudaDeviceProp) {
    let unit = device.unit();
    for (to, from) in p.name.iter_mut().zip(unit.name.bytes().take(255)) {
        *to = from as c_char;
    }
    for (to, from) in p.uuid.bytes.iter_mut().zip(unit.uuid_bytes()) {
        *to = from as c_char;
    }
    let Capability(major, minor) = unit.gpu().compute_capability;
    p.totalGlobalMem = unit.memory as usize;
    p.sharedMemPerBlock = 48 << 10;
    p.regsPerBlock = 65536;
    p.warpSize = 32;
    p.memPitch = i32::MAX as usize;
    p.maxThreadsPerBlock = 1024;
    p.maxThreadsDim = [1024, 1024, 64];
    p.maxGridSize = [i32::MAX, 65535, 65535];
    p.totalConstMem = 65536;
    (p.major, p.minor) = (major, minor);
    p.textureAlignment = 512;
    p.texturePitchAlignment = 32;
    p.multiProcessorCount = unit.multiprocessors;
    p.canMapHostMemory = 1;
    p.concurrentKernels = 1;
    p.pciBusID = unit.bus() as c_int;
    p.asyncEngineCount = 3;
    p.unifiedAddressing = 1;
    p.memoryBusWidth = 5120;
    p.l2CacheSize = 40 << 20;
    p.maxThreadsPerMultiProcessor = threads_per_multiprocessor(Capability(major, minor));
    p.streamPrioritiesSupported = 1;
    (p.globalL1CacheSupported, p.localL1CacheSupported) = (1, 1);
    p.sharedMemPerMultiprocessor = shared_kib(Capability(major, minor)) << 10;
    p.regsPerMultiprocessor = 65536;
    p.managedMemory = 1;
    p.cooperativeLaunch = 1;
    p.sharedMemPerBlockOptin = shared_kib_of_block(Capability(major, minor)) << 10;
    p.maxBlocksPerMultiProcessor = 32;
    p.reservedSharedMemPerBlock = 1024;
    p.hostRegisterSupported = 1;
    p.memoryPoolsSupported = 1;
    p.clusterLaunch = c_int::from(major >= 9);
    p.computePreemptionSupported = 1;
    p.canUseHostPointerForRegisteredMem = 1;
}

api! { query:
    fn cudaGetDeviceCount(count: *mut c_int) {
        give(count, 0)?;
        if MACHINE.driver_error != 0 {
            return Err(MACHINE.driver_error);
        }
        if MACHINE.cuda < 13000 {
            return Err(codes::INSUFFICIENT_DRIVER);
        }
        give(count, device::all().len() as c_int)?;
        if device::all().is_empty() { Err(codes::NO_DEVICE) } else { Ok(()) }
    }
    fn cudaGetDevice(ordinal: *mut c_int) { give(ordinal, device::ordinal() as c_int) }
    fn cudaGetDeviceProperties(properties: *mut cudaDeviceProp, ordinal: c_int) {
        let device = device::of(ordinal)?;
        properties.write_bytes(0, 1);
        describe(device, &mut *properties);
        Ok(())
    }
    fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, ordinal: c_int) {
        give(value, attribute_of(device::of(ordinal)?, attribute))
    }
    fn cudaDeviceGetPCIBusId(id: *mut c_char, size: c_int, ordinal: c_int) {
        give_text(id, size.max(0) as usize, &format!("0000:{:02X}:00.0", device::of(ordinal)?.unit().bus()))
    }
    fn cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        let differ = device::of(device)?.ordinal != device::of(peer)?.ordinal;
        give(can, c_int::from(differ && MACHINE.link != Link::None))
    }
    fn cudaDriverGetVersion(version: *mut c_int) { give(version, MACHINE.cuda) }
    fn cudaRuntimeGetVersion(version: *mut c_int) { give(version, 13000) }
    fn cudaProfilerStart() { Ok(()) }
    fn cudaProfilerStop() { Ok(()) }
}

api! { runtime:
    fn cudaSetDevice(ordinal: c_int) {
        let device = device::of(ordinal)?;
        device::select(device);
        device.healthy()?;
        device.open()
    }
    fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        give(least, 0)?;
        give(greatest, -5)
    }
    fn cudaDeviceSynchronize() {
        let device = device::current()?;
        device.open()?;
        capture::allow_unsafe()?;
        counts::count(Kind::HostWait, 1);
        stream::wait_all(device);
        device.healthy()
    }
    fn cudaDeviceEnablePeerAccess(peer: c_int, _flags: c_uint) {
        let (device, peer) = (device::current()?, device::of(peer)?);
        if MACHINE.link == Link::None || peer.ordinal == device.ordinal {
            return Err(codes::PEER_UNSUPPORTED);
        }
        if device.reach(peer.ordinal) { Ok(()) } else { Err(codes::PEER_ENABLED) }
    }
    fn cudaDeviceGetDefaultMemPool(pool: *mut *mut c_void, ordinal: c_int) {
        give(pool, std::ptr::without_provenance_mut(device::of(ordinal)?.ordinal + 1))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> Code {
    static SITE: Site = Site::new("cudaGetLastError");
    framed(&SITE, |_| match codes::take_last() {
        0 => device::sticky(),
        code => code,
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> Code {
    static SITE: Site = Site::new("cudaPeekAtLastError");
    framed(&SITE, |_| match codes::last() {
        0 => device::sticky(),
        code => code,
    })
}
