//! The devices of this process: contexts, sticky errors, and the thread's current device.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use serde_json::json;

use crate::codes::{self, Code, Outcome};
use crate::units::{self, UNITS, Unit};
use crate::{books, counts};

/// A GPU or MIG instance that this process may use.
pub(crate) struct Device {
    /// Its index among this process's devices.
    pub(crate) ordinal: usize,
    /// Its index among the machine's units.
    pub(crate) unit: usize,
    context: Mutex<bool>,
    made: AtomicU64,
    sticky: AtomicI32,
    peers: Mutex<BTreeSet<usize>>,
}

static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let device = |(ordinal, unit)| Device {
        ordinal,
        unit,
        context: Mutex::new(false),
        made: AtomicU64::new(0),
        sticky: AtomicI32::new(0),
        peers: Mutex::default(),
    };
    // How many contexts this process made on each device.
    counts::add_section("contexts", || {
        DEVICES.iter().map(|device| json!(device.made.load(Ordering::Relaxed))).collect()
    });
    counts::add_section("devices", || DEVICES.iter().map(|device| json!(UNITS[device.unit].uuid)).collect());
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

/// Returns the ordinal of the thread's device, which may not exist.
pub(crate) fn ordinal() -> usize {
    CURRENT.get()
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

    pub(crate) fn has_context(&self) -> bool {
        *self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the missing context: it takes memory.
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
}
