//! The devices of this process: contexts, sticky errors, properties, and the thread's current device.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cudarc::runtime::sys::{cudaDeviceAttr as A, cudaDeviceProp};

use crate::counts::{self, Kind};
use crate::ffi::{Code, Outcome, api, give, give_text};
use crate::machine::{Capability, Link, MACHINE};
use crate::stream::{self, Stream};
use crate::units::{self, UNITS, Unit};
use crate::{books, capture, codes};

/// A GPU or MIG instance that this process may use.
pub(crate) struct Device {
    /// Its index among this process's devices.
    pub(crate) ordinal: usize,
    /// Its index among the machine's units.
    pub(crate) unit: usize,
    context: Mutex<bool>,
    made: AtomicU64,
    sticky: AtomicI32,
    /// The legacy stream.
    pub(crate) null: Arc<Stream>,
    peers: Mutex<BTreeSet<usize>>,
}

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let device = |(ordinal, unit)| Device {
        ordinal,
        unit,
        context: Mutex::new(false),
        made: AtomicU64::new(0),
        sticky: AtomicI32::new(0),
        null: Arc::new(Stream::new(ordinal, ordinal, 0, 0)),
        peers: Mutex::default(),
    };
    units::visible().into_iter().enumerate().map(device).collect()
});

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn all() -> &'static [Device] {
    &DEVICES
}

/// Returns the device of an ordinal that came from a caller.
pub(crate) fn of(ordinal: c_int) -> Outcome<&'static Device> {
    usize::try_from(ordinal).ok().and_then(|index| DEVICES.get(index)).ok_or(codes::INVALID_DEVICE)
}

/// Returns the thread's device.
pub(crate) fn current() -> Outcome<&'static Device> {
    DEVICES.get(CURRENT.get()).ok_or(codes::NO_DEVICE)
}

/// Sets the thread's device.
pub(crate) fn select(device: &Device) {
    CURRENT.set(device.ordinal);
}

/// Fails without a device, and after a sticky error.
pub(crate) fn usable() -> Outcome {
    current()?.healthy()
}

/// Returns the current device's sticky error.
pub(crate) fn sticky() -> Code {
    DEVICES.get(CURRENT.get()).map_or(0, |device| device.sticky.load(Ordering::Relaxed))
}

impl Device {
    pub(crate) fn unit(&self) -> &'static Unit {
        &UNITS[self.unit]
    }

    pub(crate) fn healthy(&self) -> Outcome {
        match self.sticky.load(Ordering::Relaxed) {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// Makes every later call fail. The first error stays.
    pub(crate) fn fail(&self, code: Code) {
        let _ = self.sticky.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns how many contexts this process made on the device.
    pub(crate) fn contexts(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    pub(crate) fn has_context(&self) -> bool {
        *self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the context if there is none: it takes memory.
    pub(crate) fn open(&self) -> Outcome {
        let mut context = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        if *context {
            return Ok(());
        }
        let gpu = self.unit().gpu();
        if gpu.context_error != 0 {
            return Err(gpu.context_error);
        }
        if books::is_lost(self.unit) {
            return Err(codes::UNKNOWN);
        }
        if !books::take(self.unit, gpu.context.0) {
            return Err(codes::OUT_OF_MEMORY);
        }
        *context = true;
        self.made.fetch_add(1, Ordering::Relaxed);
        counts::note("[context]");
        Ok(())
    }

    /// Returns whether kernels of this device may use memory of the other.
    pub(crate) fn reaches(&self, other: usize) -> bool {
        other == self.ordinal || self.peers.lock().unwrap_or_else(PoisonError::into_inner).contains(&other)
    }

    /// Lets kernels of this device use memory of the other. Returns false if they already may.
    pub(crate) fn reach(&self, other: usize) -> bool {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).insert(other)
    }

    /// Returns an attribute; those without a meaning here are 0.
    pub(crate) fn attribute(&self, attribute: c_int) -> c_int {
        let is = |other: A| attribute == other as c_int;
        let unit = self.unit();
        let Capability(major, minor) = unit.gpu().compute_capability;
        let ones = [
            A::cudaDevAttrUnifiedAddressing,
            A::cudaDevAttrConcurrentKernels,
            A::cudaDevAttrCanMapHostMemory,
            A::cudaDevAttrCooperativeLaunch,
            A::cudaDevAttrHostRegisterSupported,
            A::cudaDevAttrMemoryPoolsSupported,
            A::cudaDevAttrStreamPrioritiesSupported,
        ];
        let table = [
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
            (A::cudaDevAttrMaxThreadsPerMultiProcessor, 2048),
            (A::cudaDevAttrComputeCapabilityMajor, major),
            (A::cudaDevAttrComputeCapabilityMinor, minor),
            (A::cudaDevAttrMaxSharedMemoryPerMultiprocessor, 164 << 10),
            (A::cudaDevAttrMaxSharedMemoryPerBlockOptin, 163 << 10),
            (A::cudaDevAttrMaxRegistersPerBlock, 65536),
            (A::cudaDevAttrMaxRegistersPerMultiprocessor, 65536),
            (A::cudaDevAttrL2CacheSize, 40 << 20),
            (A::cudaDevAttrPciBusId, unit.bus() as c_int),
            (A::cudaDevAttrClockRate, 1_410_000),
            (A::cudaDevAttrMemoryClockRate, 1_215_000),
            (A::cudaDevAttrGlobalMemoryBusWidth, 5120),
            (A::cudaDevAttrMaxBlocksPerMultiprocessor, 32),
        ];
        let found = table.into_iter().find(|(other, _)| is(*other)).map(|(_, value)| value);
        found.unwrap_or_else(|| c_int::from(ones.into_iter().any(is)))
    }

    fn properties(&self, p: &mut cudaDeviceProp) {
        let unit = self.unit();
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
        p.maxThreadsPerMultiProcessor = 2048;
        p.streamPrioritiesSupported = 1;
        (p.globalL1CacheSupported, p.localL1CacheSupported) = (1, 1);
        p.sharedMemPerMultiprocessor = 164 << 10;
        p.regsPerMultiprocessor = 65536;
        p.managedMemory = 1;
        p.cooperativeLaunch = 1;
        p.sharedMemPerBlockOptin = 163 << 10;
        p.maxBlocksPerMultiProcessor = 32;
        p.reservedSharedMemPerBlock = 1024;
        p.hostRegisterSupported = 1;
        p.memoryPoolsSupported = 1;
        p.clusterLaunch = c_int::from(major >= 9);
        p.computePreemptionSupported = 1;
        p.canUseHostPointerForRegisteredMem = 1;
    }
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
        give(count, all().len() as c_int)?;
        if all().is_empty() { Err(codes::NO_DEVICE) } else { Ok(()) }
    }
    fn cudaGetDevice(ordinal: *mut c_int) { give(ordinal, CURRENT.get() as c_int) }
    fn cudaGetDeviceProperties(properties: *mut cudaDeviceProp, ordinal: c_int) {
        let device = of(ordinal)?;
        properties.write_bytes(0, 1);
        device.properties(&mut *properties);
        Ok(())
    }
    fn cudaDeviceGetAttribute(value: *mut c_int, attribute: c_int, ordinal: c_int) {
        give(value, of(ordinal)?.attribute(attribute))
    }
    fn cudaDeviceGetPCIBusId(id: *mut c_char, size: c_int, ordinal: c_int) {
        give_text(id, size.max(0) as usize, &format!("0000:{:02X}:00.0", of(ordinal)?.unit().bus()))
    }
    fn cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        let differ = of(device)?.ordinal != of(peer)?.ordinal;
        give(can, c_int::from(differ && MACHINE.link != Link::None))
    }
    fn cudaDriverGetVersion(version: *mut c_int) { give(version, MACHINE.cuda) }
    fn cudaRuntimeGetVersion(version: *mut c_int) { give(version, 13000) }
    fn cudaProfilerStart() { Ok(()) }
    fn cudaProfilerStop() { Ok(()) }
}

api! { runtime:
    fn cudaSetDevice(ordinal: c_int) {
        let device = of(ordinal)?;
        select(device);
        device.healthy()?;
        device.open()
    }
    fn cudaDeviceGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        give(least, 0)?;
        give(greatest, -5)
    }
    fn cudaDeviceSynchronize() {
        let device = current()?;
        device.open()?;
        capture::allow_unsafe()?;
        counts::count(Kind::HostWait, 1);
        stream::wait_all(device);
        device.healthy()
    }
    fn cudaDeviceEnablePeerAccess(peer: c_int, _flags: c_uint) {
        let (device, peer) = (current()?, of(peer)?);
        if MACHINE.link == Link::None || peer.ordinal == device.ordinal {
            return Err(codes::PEER_UNSUPPORTED);
        }
        if device.reach(peer.ordinal) { Ok(()) } else { Err(codes::PEER_ENABLED) }
    }
    fn cudaDeviceGetDefaultMemPool(pool: *mut *mut c_void, ordinal: c_int) {
        give(pool, std::ptr::without_provenance_mut(of(ordinal)?.ordinal + 1))
    }
}
