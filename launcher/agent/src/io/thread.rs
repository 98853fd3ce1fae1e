//! Threads that only wait or copy.

use std::io;

/// Their stack in bytes; three threads per worker with the default of 2 MiB waste address space.
const STACK: usize = 256 * 1024;

pub(super) fn start(name: impl Into<String>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK);
    thread.spawn(work).map(drop)
}
