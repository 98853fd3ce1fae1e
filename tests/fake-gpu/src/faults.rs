//! Faults: the n-th call of a function fails, a kernel fails or never ends, a GPU is lost.

use std::env;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ffi::{Code, Outcome};
use crate::machine::{Fault, HANG, LOST, MACHINE};
use crate::messages;
use crate::{books, codes, counts, device};

/// The faults of this process's rank.
static FAULTS: LazyLock<Vec<Fault>> = LazyLock::new(|| {
    let rank = env::var("RANK").ok();
    let is_own = |fault: &&Fault| fault.rank.is_none() || fault.rank == rank;
    MACHINE.faults.iter().filter(is_own).cloned().collect()
});

/// The effect of a kernel or collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Runs,
    Fails(Code),
    NeverEnds,
}

/// Returns the fate of call `number` at a site.
pub(crate) fn fate(site: &str, number: u64) -> Fate {
    let Some(fault) = FAULTS.iter().find(|fault| fault.at == number && fault.site == site) else {
        return Fate::Runs;
    };
    counts::counter("[fault]").fetch_add(1, Ordering::Relaxed);
    messages::trace(&format!("  fault {} at call {number} of {site}", fault.code));
    match fault.code {
        HANG => Fate::NeverEnds,
        LOST => {
            if let Ok(device) = device::current() {
                books::lose(device.unit);
            }
            Fate::Fails(codes::UNKNOWN)
        }
        code => Fate::Fails(code),
    }
}

/// Returns the error of call `number` of a function, if it has one. A hang never returns.
pub(crate) fn fail(site: &str, number: u64) -> Outcome {
    match fate(site, number) {
        Fate::Runs => Ok(()),
        Fate::Fails(code) => {
            if codes::is_sticky(code) && site.starts_with("cuda") {
                device::current()?.fail(code);
            }
            Err(code)
        }
        Fate::NeverEnds => never_end(),
    }
}

/// Returns the fate of the next kernels, as many as `kernels`: a graph launches many at once.
pub(crate) fn next_kernels(kernels: u64) -> Fate {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    let first = LAUNCHES.fetch_add(kernels, Ordering::Relaxed) + 1;
    if FAULTS.is_empty() {
        return Fate::Runs;
    }
    let fates = (first..first + kernels).map(|number| fate("launch", number));
    fates.into_iter().find(|fate| *fate != Fate::Runs).unwrap_or(Fate::Runs)
}

/// Returns the error of the next captured operation, if it has one.
pub(crate) fn next_node() -> Outcome {
    static NODES: AtomicU64 = AtomicU64::new(0);
    fail("node", NODES.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Blocks the calling thread forever.
pub(crate) fn never_end() -> ! {
    loop {
        std::thread::park();
    }
}
