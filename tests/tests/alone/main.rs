//! Tests that must run alone: they use state of the whole process (torch's generators, its memory counters
//! and peak), or ask every worker of the machine. A test holds [`alone`] while it runs.

#![allow(clippy::unwrap_used)]

mod control;
mod fuzz;
mod model_init;
mod recompute;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps the other tests of this binary waiting until the guard is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
