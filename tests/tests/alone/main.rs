//! Tests of what a process has once: torch's generators, the counters of its memory, its peak. One at a time holds [`alone`].

#![allow(clippy::unwrap_used)]

mod fuzz;
mod model_init;
mod recompute;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps other tests of this binary from drawing random numbers and from allocating, until it is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
