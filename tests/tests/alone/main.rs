//! Tests that nothing may run beside: of what a process has once (torch's generators, the counters of its memory, its peak), and of
//! what asks every worker of the machine. One at a time holds [`alone`].

#![allow(clippy::unwrap_used)]

mod control;
mod fuzz;
mod model_init;
mod recompute;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps the other tests of this binary from running, until it is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
